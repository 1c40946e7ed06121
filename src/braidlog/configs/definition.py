"""The definition of a config: type, default, accepted values and parsing."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from braidlog.runtime.errors import BraidError, Remedy

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class InvalidConfig(BraidError):
    """A config name that does not exist, or a value that it does not accept."""

    remedy = Remedy.FIX_INPUT


class ConfigType(IntEnum):
    """Kafka's numbers for the types, as DescribeConfigs reports them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_INTEGER_LIMITS = {
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.INT: (-INT_MAX - 1, INT_MAX),
    ConfigType.LONG: (-LONG_MAX - 1, LONG_MAX),
}


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker-level config that sets the default of a topic config.

    It has the factor between their units.
    """

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    name: str
    type: ConfigType
    default: str | None
    documentation: str
    at_least: float | None = None
    at_most: float | None = None
    """The highest value that is accepted, itself included."""
    one_of: tuple[str, ...] = ()
    """For LIST: each item must be one of these."""
    synonyms: tuple[Synonym, ...] = ()
    """The broker-level names, the strongest first."""
    read_only: bool = False
    check: Callable[[Any], str | None] | None = field(default=None, compare=False)
    """A further rule: returns the reason to refuse a value, or None."""

    def parse(self, text: str) -> Any:
        """Return the value of a config's text. Raises `InvalidConfig`."""
        value = self._typed(text)
        reason = self._reason_against(value)
        if reason is None and self.check is not None:
            reason = self.check(value)
        if reason is not None:
            raise self._invalid(text, reason)
        return value

    def _typed(self, text: str) -> Any:
        stripped = text.strip()
        match self.type:
            case ConfigType.BOOLEAN:
                if stripped.lower() not in ("true", "false"):
                    raise self._invalid(text, "Expected value to be either true or false")
                return stripped.lower() == "true"
            case ConfigType.SHORT | ConfigType.INT | ConfigType.LONG:
                low, high = _INTEGER_LIMITS[self.type]
                if not stripped.lstrip("+-").isascii() or not stripped.lstrip("+-").isdigit():
                    raise self._invalid(text, f"Not a number of type {self.type.name}")
                try:
                    number = int(stripped)
                except ValueError:
                    raise self._invalid(text, f"Not a number of type {self.type.name}") from None
                if not low <= number <= high:
                    raise self._invalid(text, f"Not a number of type {self.type.name}")
                return number
            case ConfigType.DOUBLE:
                try:
                    return float(stripped)
                except ValueError:
                    raise self._invalid(text, "Not a number of type DOUBLE") from None
            case ConfigType.LIST:
                return split_list(text)
            case _:
                return stripped

    def _reason_against(self, value: Any) -> str | None:
        if self.type is ConfigType.LIST:
            if len(set(value)) != len(value):
                return "Configuration must not contain duplicate values"
            if self.one_of and any(item not in self.one_of for item in value):
                return f"String must be one of: {', '.join(self.one_of)}"
            return None
        if self.one_of and value not in self.one_of:
            return f"String must be one of: {', '.join(self.one_of)}"
        # Written so that a NaN fails both.
        if self.at_least is not None and not value >= self.at_least:
            return f"Value must be at least {self.at_least}"
        if self.at_most is not None and not value <= self.at_most:
            return f"Value must be no more than {self.at_most}"
        return None

    def _invalid(self, text: str, reason: str) -> InvalidConfig:
        return InvalidConfig(
            f"Invalid value {text} for configuration {self.name}: {reason}",
            help=f"{self.name}: {self.documentation}",
        )


def split_list(text: str) -> tuple[str, ...]:
    """Split the text of a LIST config into its items."""
    return tuple(item.strip() for item in text.split(",")) if text.strip() else ()


def by_name(*definitions: ConfigDefinition) -> dict[str, ConfigDefinition]:
    return {definition.name: definition for definition in definitions}
