"""Errors, by what the caller should do about them."""

from enum import Enum


class Remedy(Enum):
    """What a caller can do about an error."""

    RETRY = "retry"
    """The same call may succeed later."""
    REFRESH = "refresh"
    """The caller's information is stale: look again, then decide."""
    FIX_INPUT = "fix input"
    """The request or the setting is wrong, and will stay wrong."""
    CHECK_OUTCOME = "check outcome"
    """It is unknown whether the call took effect. Only an idempotent call may be repeated."""
    GIVE_UP = "give up"
    """Data or state is damaged, or this process has been replaced."""


class BraidError(Exception):
    """Base of all errors that Braidlog raises on purpose.

    `help` is one line for people: the setting, the command or the fact that resolves the error.
    """

    remedy: Remedy = Remedy.GIVE_UP

    def __init__(self, message: str, *, help: str = "") -> None:  # noqa: A002 - the word people know
        super().__init__(message)
        self.help = help

    @property
    def retriable(self) -> bool:
        return self.remedy is Remedy.RETRY


class InvalidSetting(BraidError):
    """A setting, a URL or an argument that cannot be used."""

    remedy = Remedy.FIX_INPUT


class ControlUnavailable(BraidError):
    """The control plane could not be reached, so it did not get the call."""

    remedy = Remedy.RETRY


class ControlAway(ControlUnavailable):
    """The control plane has been away for a while, so the call was not even tried."""


class DeadlineExceeded(BraidError):
    """No answer in time. The call may have taken effect."""

    remedy = Remedy.CHECK_OUTCOME


class Fenced(BraidError):
    """A newer holder has taken over. This process must stop writing."""

    remedy = Remedy.GIVE_UP
