"""Who may use the console."""

import pytest

from braidlog.console.guard import COOKIE, KEY_HEADER, Guard
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.quantities import Address

LOCAL = Address("127.0.0.1", 9480)
TOKEN = "0123456789abcdef"


@pytest.fixture
def guard() -> Guard:
    return Guard(LOCAL, "", SystemEntropy())


def own(guard: Guard, **changes: str) -> dict[str, str]:
    headers = {
        "host": "127.0.0.1:9480",
        "origin": "http://127.0.0.1:9480",
        "sec-fetch-site": "same-origin",
        KEY_HEADER: guard.key,
    }
    return {**headers, **{name.replace("_", "-"): value for name, value in changes.items()}}


def test_the_own_page_may_read_and_act(guard: Guard) -> None:
    assert guard.check("GET", {"host": "localhost:9480"}, {}, "127.0.0.1") is None
    assert guard.check("POST", own(guard), {}, "127.0.0.1") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
        {"x_braidlog_key": ""},
        {"x_braidlog_key": "wrong"},
    ],
)
def test_pages_of_other_sites_may_not_act(guard: Guard, changes: dict[str, str]) -> None:
    refusal = guard.check("POST", own(guard, **changes), {}, "127.0.0.1")
    assert refusal is not None
    assert refusal.status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9480", "127.0.0.1.evil.example:9480", ""])
def test_names_of_other_sites_may_not_even_read(guard: Guard, host: str) -> None:
    """A site that gives its own name our address would otherwise count as the same site."""
    refusal = guard.check("GET", {"host": host}, {}, "127.0.0.1")
    assert refusal is not None
    assert refusal.status == 403


def test_pages_of_other_sites_may_lead_here_and_not_ask(guard: Guard) -> None:
    foreign = {"host": "127.0.0.1:9480", "sec-fetch-site": "cross-site"}
    refusal = guard.check("GET", {**foreign, "sec-fetch-mode": "no-cors"}, {}, "127.0.0.1")
    assert refusal is not None
    assert refusal.status == 403
    assert guard.check("GET", {**foreign, "sec-fetch-mode": "navigate"}, {}, "127.0.0.1") is None


def test_other_machines_may_not_without_a_token(guard: Guard) -> None:
    assert guard.check("GET", {"host": "127.0.0.1"}, {}, "10.0.0.9") is not None
    with pytest.raises(InvalidSetting, match="could be used by anybody"):
        Guard(Address("0.0.0.0", 9480), "", SystemEntropy())


def test_whoever_has_the_token_may_from_anywhere() -> None:
    guard = Guard(Address("0.0.0.0", 9480), TOKEN, SystemEntropy())
    named = {"host": "console.example:9480"}
    assert guard.check("GET", named, {}, "10.0.0.9") is not None
    assert guard.check("GET", {**named, "authorization": "Bearer wrong"}, {}, "10.0.0.9") is not None
    assert guard.check("GET", {**named, "authorization": f"Bearer {TOKEN}"}, {}, "10.0.0.9") is None
    assert guard.check("GET", named, {COOKIE: TOKEN}, "10.0.0.9") is None
    # The token alone is not enough to act: a browser sends the cookie for other sites' pages, too.
    acting = own(guard, host="console.example:9480", origin="https://evil.example")
    assert guard.check("POST", acting, {COOKIE: TOKEN}, "10.0.0.9") is not None


def test_halves_of_characters_are_no_token() -> None:
    """JSON can hold them. Whoever asks is told no, and nothing fails."""
    assert not Guard(LOCAL, TOKEN, SystemEntropy()).is_token("\ud800")
