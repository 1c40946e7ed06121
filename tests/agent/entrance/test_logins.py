"""Logins: lifetimes, re-authentication, and users that cannot be told from others."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from scramp import ScramClient
from tests.fakes import FakeClock

from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.entrance.login import Login
from braidlog.agent.entrance.logins import AUTHENTICATE, FAILED, HANDSHAKE, LoginRules, Logins
from braidlog.agent.entrance.users import Users, read_users
from braidlog.control.interface import ScramCredential
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import InvalidSetting
from braidlog.security.scram import keys_of_password

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class Connection:
    """What logins know of a connection."""

    def __init__(self) -> None:
        self.login: Login | None = Login()
        self.peer_host = "10.0.0.1"
        self.identified: list[tuple[str, bool]] = []
        self.is_draining = False

    def identify(self, user: str, *, is_final: bool) -> None:
        self.identified.append((user, is_final))

    def drain(self) -> None:
        self.is_draining = True


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def build(clock: FakeClock, *, lifetime_ms: int = 0) -> Logins:
    view = ClusterView()
    for user in ("alice", "bob"):
        keys = keys_of_password(2, f"{user}-secret", b"salt-of-sixteen-")
        view.credentials[user, 2] = ScramCredential(
            user, 2, keys.salt, keys.iterations, keys.stored_key, keys.server_key
        )
    users = Users(view, SeededEntropy("users"), "")
    return Logins(users, LoginRules(MECHANISMS, lifetime_ms, 0.25), clock, SeededEntropy("logins"))


async def plain(logins: Logins, connection: Connection, user: str, password: str) -> Any:
    await logins.answer(connection, HANDSHAKE, 1, SimpleNamespace(mechanism="PLAIN"))
    message = f"\0{user}\0{password}".encode()
    return await logins.answer(connection, AUTHENTICATE, 2, SimpleNamespace(auth_bytes=message))


async def test_a_login_identifies_the_connection_for_good(clock: FakeClock) -> None:
    logins, connection = build(clock), Connection()
    answer = await plain(logins, connection, "alice", "alice-secret")
    assert (answer.error_code, answer.session_lifetime.total_seconds()) == (ErrorCode.none, 0)
    assert connection.identified == [("alice", True)]
    assert connection.login is not None
    clock.advance(10**6)
    assert logins.is_current(connection.login)


async def test_a_login_with_a_lifetime_must_be_repeated_by_the_same_user(clock: FakeClock) -> None:
    logins, connection = build(clock, lifetime_ms=60_000), Connection()
    answer = await plain(logins, connection, "alice", "alice-secret")
    assert answer.session_lifetime.total_seconds() == 60
    assert connection.identified == [("alice", False)]
    assert connection.login is not None
    clock.advance(59)
    assert logins.is_current(connection.login)
    clock.advance(2)
    assert not logins.is_current(connection.login)
    assert (await plain(logins, connection, "alice", "alice-secret")).error_code == ErrorCode.none
    assert logins.is_current(connection.login)
    assert (await plain(logins, connection, "bob", "bob-secret")).error_code == ErrorCode.sasl_authentication_failed
    assert connection.is_draining
    assert [user for user, _ in connection.identified] == ["alice", "alice"]


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("nobody", "alice-secret"), ("", "x"), ("x", "")])
async def test_failures_are_late_counted_and_alike(clock: FakeClock, user: str, password: str) -> None:
    logins, connection = build(clock), Connection()
    before_s = clock.monotonic_s()
    answer = await plain(logins, connection, user, password)
    assert (answer.error_code, answer.error_message) == (ErrorCode.sasl_authentication_failed, FAILED)
    assert clock.monotonic_s() - before_s == pytest.approx(0.25)
    assert logins.failures["PLAIN"] == 1
    assert connection.is_draining
    assert not connection.identified


@pytest.mark.parametrize(("user", "is_known"), [("alice", True), ("nobody", False)])
async def test_scram_shows_salt_and_iterations_of_users_that_do_not_exist(
    clock: FakeClock, user: str, is_known: bool
) -> None:
    """Asked twice, an unknown user has the same salt twice, as a known one does."""
    first_answers = []
    for _ in range(2):
        logins, connection = build(clock), Connection()
        await logins.answer(connection, HANDSHAKE, 1, SimpleNamespace(mechanism="SCRAM-SHA-512"))
        client = ScramClient(["SCRAM-SHA-512"], user, "alice-secret", c_nonce="nonce")
        first = SimpleNamespace(auth_bytes=client.get_client_first().encode())
        told = (await logins.answer(connection, AUTHENTICATE, 2, first)).auth_bytes.decode()
        first_answers.append(dict(part.split("=", 1) for part in told.split(","))["s"])
        client.set_server_first(told)
        final = SimpleNamespace(auth_bytes=client.get_client_final().encode())
        answer = await logins.answer(connection, AUTHENTICATE, 2, final)
        assert (answer.error_code == ErrorCode.none) is is_known
        if is_known:
            client.set_server_final(answer.auth_bytes.decode())  # the server proves itself too
            assert connection.identified == [("alice", True)]
    assert first_answers[0] == first_answers[1]


def test_a_users_file_has_a_line_for_each_user(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("# first\nadmin:a:b\n\nother: spaced\n")
    assert read_users(path) == {"admin": "a:b", "other": " spaced"}
    path.write_text("admin\n")
    with pytest.raises(InvalidSetting, match="line 1"):
        read_users(path)
    with pytest.raises(InvalidSetting, match="cannot be read"):
        read_users(tmp_path / "missing")
