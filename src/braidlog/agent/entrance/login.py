"""The login of one connection: what it has shown of itself so far."""

from dataclasses import dataclass, field

from braidlog.security.scram import ScramExchange

FRAMES_MAX = 20
"""How many requests a client may send before it has logged in."""
FRAME_BYTES_MAX = 32 * 1024
"""How long each of them may be."""
LOGIN_S_MAX = 30.0
"""How long a client may take to log in."""


@dataclass(slots=True, eq=False)
class Login:
    frame_count: int = 0
    mechanism: str = ""
    """The mechanism that was agreed on; empty before that, and after each login."""
    exchange: ScramExchange | None = None
    user: str | None = None
    """The user that has logged in; None before that."""
    expires_s: float = field(default=float("inf"))
    """When the login counts no more, on the monotonic clock."""

    def is_current(self, now_s: float) -> bool:
        return self.user is not None and now_s < self.expires_s
