"""Injected faults of stores: a seeded plan of requests that fail.

It can change while it runs.
"""

from dataclasses import dataclass
from enum import Enum

from braidlog.objects.wrapper import Operation
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import InvalidSetting


class Fault(Enum):
    ERROR = "error"
    """The store refuses; nothing happens."""
    SLOW_DOWN = "slow down"
    TIMEOUT_BEFORE = "timeout before"
    """No answer, and the request had no effect."""
    TIMEOUT_AFTER = "timeout after"
    """No answer, but the request took effect."""
    TORN_READ = "torn read"
    LATE_PUT = "late put"
    """No answer, and the write takes effect later, when the caller has given up."""


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The share of requests that each fault hits, from 0 to 1; together at most 1.

    Faults that do not apply to an operation are left out.
    """

    error: float = 0.0
    slow_down: float = 0.0
    timeout_before: float = 0.0
    timeout_after: float = 0.0
    torn_read: float = 0.0
    late_put: float = 0.0

    def __post_init__(self) -> None:
        rates = [rate for _, rate in self.items()]
        if min(rates) < 0 or sum(rates) > 1 + 1e-9:
            raise InvalidSetting(f"{self}: rates must not be negative, nor more than 1 together")

    def items(self) -> list[tuple[Fault, float]]:
        return [
            (Fault.ERROR, self.error),
            (Fault.SLOW_DOWN, self.slow_down),
            (Fault.TIMEOUT_BEFORE, self.timeout_before),
            (Fault.TIMEOUT_AFTER, self.timeout_after),
            (Fault.TORN_READ, self.torn_read),
            (Fault.LATE_PUT, self.late_put),
        ]


CALM = FaultRates()


class FaultPlan:
    """Decides which requests fail, and how.

    The same entropy and requests give the same faults.
    """

    def __init__(
        self, entropy: Entropy, rates: FaultRates = CALM, *, hang_s: float = 0.0, late_s_max: float = 5.0
    ) -> None:
        """`hang_s` passes before a timeout is reported.

        A late put lands within `late_s_max` after that.
        """
        self._entropy = entropy
        self._rates = dict.fromkeys(Operation, rates)
        self._forced: list[tuple[Operation, Fault]] = []
        self.hang_s = hang_s
        self.late_s_max = late_s_max
        self.injected = dict.fromkeys(Fault, 0)

    def set_rates(self, rates: FaultRates, *operations: Operation) -> None:
        """Set the rates from now on, for these operations or for all."""
        for operation in operations or Operation:
            self._rates[operation] = rates

    def calm(self) -> None:
        self.set_rates(CALM)
        self._forced.clear()

    def force(self, operation: Operation, fault: Fault) -> None:
        """Let the next request of this kind fail in this way.

        Several forced faults queue up.
        """
        self._forced.append((operation, fault))

    def draw(self, operation: Operation) -> Fault | None:
        """Draw the fault of the next request.

        Every call draws one number, whatever the rates are.
        """
        draw = self._entropy.uniform(0.0, 1.0)
        chosen = self._take_forced(operation)
        if chosen is None:
            bound = 0.0
            for fault, rate in self._rates[operation].items():
                bound += rate
                if draw < bound:
                    chosen = fault
                    break
        if chosen is None or (chosen is Fault.TORN_READ and not operation.reads_data):
            return None
        if chosen is Fault.LATE_PUT and not operation.writes:
            return None
        self.injected[chosen] += 1
        return chosen

    def late_s(self) -> float:
        return self._entropy.uniform(0.0, self.late_s_max)

    def _take_forced(self, operation: Operation) -> Fault | None:
        for index, (candidate, fault) in enumerate(self._forced):
            if candidate is operation:
                del self._forced[index]
                return fault
        return None
