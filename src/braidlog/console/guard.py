"""Who may use the console: its own machine, or whoever has the token.

A page of another site must not be able to act, nor to read: a browser sends it along with the user's rights. So
requests must name the console's own host, and actions must come from the console's own page and carry its key.
"""

import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.quantities import Address

KEY_HEADER = "x-braidlog-key"
COOKIE = "braidlog_console"
LOCAL_NAMES = {"localhost", "127.0.0.1", "[::1]", "::1"}


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is refused, and what to do."""

    status: int
    error: str
    help: str


def is_loopback(host: str) -> bool:
    if host in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Decides on every request."""

    def __init__(self, listen: Address, token: str, entropy: Entropy) -> None:
        if not token and not is_loopback(listen.host):
            raise InvalidSetting(
                f"the console at {listen} could be used by anybody",
                help="Listen on 127.0.0.1, or set console_token_file to a file that holds a token.",
            )
        self._token = token
        self.key = entropy.token(16).hex()
        """Actions must carry it. Only the console's own pages can read it."""

    @property
    def needs_token(self) -> bool:
        return bool(self._token)

    def is_token(self, given: str) -> bool:
        # JSON may hold halves of characters, which UTF-8 has no bytes for.
        return bool(self._token) and hmac.compare_digest(given.encode(errors="surrogatepass"), self._token.encode())

    def check(self, method: str, headers: Mapping[str, str], cookies: Mapping[str, str], peer: str) -> Refusal | None:
        """Give None if the request may pass."""
        host = headers.get("host", "")
        if self._token:
            bearer = headers.get("authorization", "").removeprefix("Bearer ").strip()
            if not (self.is_token(bearer) or self.is_token(cookies.get(COOKIE, ""))):
                return Refusal(401, "the console wants its token", "Log in with the token of console_token_file.")
        else:
            # Another site may give its own name our address, and would then count as the same site.
            if _name_of(host) not in LOCAL_NAMES:
                return Refusal(403, f"{host!r} is not this console's name", "Use http://127.0.0.1 or set a token.")
            if not is_loopback(peer):
                return Refusal(403, "the console serves its own machine alone", "Set console_token_file to allow more.")
        if method in {"GET", "HEAD"}:
            # Another site cannot read the answer, but could keep the cluster busy by asking. A link may lead here.
            is_foreign = headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}
            if is_foreign and headers.get("sec-fetch-mode") != "navigate":
                return Refusal(403, "another site's page asked for this", "Open the console itself.")
            return None
        return self._check_action(headers, host)

    def _check_action(self, headers: Mapping[str, str], host: str) -> Refusal | None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
            return Refusal(403, "another site's page asked for this", "Open the console itself.")
        if site is not None and site not in {"same-origin", "none"}:
            return Refusal(403, "another site's page asked for this", "Open the console itself.")
        if not hmac.compare_digest(headers.get(KEY_HEADER, "").encode(), self.key.encode()):
            return Refusal(403, "the request lacks the console's key", f"Send {KEY_HEADER} with the key of /session.")
        return None


def _name_of(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
