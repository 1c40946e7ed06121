"""Answers SaslHandshake and SaslAuthenticate.

A wrong user and a wrong password take equally long, are answered alike, late, and counted.
"""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import structlog
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64Timedelta

from braidlog.agent.entrance.login import Login
from braidlog.agent.entrance.users import Users
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.security.scram import MECHANISM_NUMBERS, ScramExchange, WrongLogin, is_password
from braidlog.wire.messages import answer_for

log = structlog.get_logger(__name__)

HANDSHAKE, AUTHENTICATE = 17, 36
SASL_VERSIONS = {HANDSHAKE: range(1, 2), AUTHENTICATE: range(3)}
"""Version 0 of the handshake is not served: what follows it are no Kafka requests."""
FAILED = "Authentication failed: Invalid username or password"
NAME_LENGTH_MAX = 1024


class LoginRules(NamedTuple):
    """What an operator sets about logins."""

    mechanisms: tuple[str, ...]
    lifetime_ms: int
    """How long a login counts; 0: as long as the connection lasts."""
    failure_delay_s: float


class Visitor(Protocol):
    """A connection, as logins see it."""

    login: Login | None
    peer_host: str

    def identify(self, user: str, *, is_final: bool) -> None:
        """Take the connection for this user's. If that is final, nothing is checked again."""

    def drain(self) -> None:
        """Close once every request is answered."""


class Logins:
    def __init__(self, users: Users, rules: LoginRules, clock: Clock, entropy: Entropy) -> None:
        self._users = users
        self._rules = rules
        self._clock = clock
        self._entropy = entropy
        self.successes: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """The number of logins, by mechanism."""

    def is_current(self, login: Login) -> bool:
        """Whether the client has logged in, and need not do so again yet."""
        return login.is_current(self._clock.monotonic_s())

    async def answer(self, visitor: Visitor, key: int, version: int, request: Any) -> Any:
        if key == HANDSHAKE:
            return self._shake_hands(visitor.login, version, str(request.mechanism))
        return await self._authenticate(visitor, version, bytes(request.auth_bytes))

    def _shake_hands(self, login: Login | None, version: int, mechanism: str) -> Any:
        code = ErrorCode.none
        if login is None:
            code = ErrorCode.illegal_sasl_state
        elif mechanism not in self._rules.mechanisms:
            code = ErrorCode.unsupported_sasl_mechanism
        else:
            login.mechanism, login.exchange = mechanism, None
            if mechanism != "PLAIN":
                login.exchange = self._begin_scram(mechanism)
        return answer_for(HANDSHAKE, version)(
            "SaslHandshakeResponse", error_code=code, mechanisms=tuple(self._rules.mechanisms)
        )

    def _begin_scram(self, mechanism: str) -> ScramExchange:
        number, users = MECHANISM_NUMBERS[mechanism], self._users
        return ScramExchange(mechanism, lambda user: users.keys_of(user, number), self._entropy.token(18).hex())

    async def _authenticate(self, visitor: Visitor, version: int, message: bytes) -> Any:
        login = visitor.login
        if login is None or not login.mechanism:
            return _answer(version, ErrorCode.illegal_sasl_state, "SaslHandshake comes first")
        mechanism = login.mechanism
        try:
            if login.exchange is None:
                user, told, is_done = await self._plain(message), b"", True
            else:
                told = login.exchange.answer(message)
                user, is_done = login.exchange.user, login.exchange.is_done
            if is_done and login.user not in (None, user):
                raise WrongLogin(f"{login.user!r} may not become {user!r}")
        except WrongLogin as error:
            login.mechanism = ""
            self.failures[mechanism] += 1
            log.warning("login failed", peer=visitor.peer_host, mechanism=mechanism, reason=str(error))
            await self._clock.sleep(self._rules.failure_delay_s)
            visitor.drain()
            return _answer(version, ErrorCode.sasl_authentication_failed, FAILED)
        if not is_done:
            return _answer(version, ErrorCode.none, None, told)
        lifetime_ms = self._rules.lifetime_ms
        login.mechanism, login.exchange, login.user = "", None, user
        if lifetime_ms:
            login.expires_s = self._clock.monotonic_s() + lifetime_ms / 1000
        self.successes[mechanism] += 1
        visitor.identify(user, is_final=not lifetime_ms)
        return _answer(version, ErrorCode.none, None, told, lifetime_ms)

    async def _plain(self, message: bytes) -> str:
        """The user of a PLAIN message (RFC 4616), whose password was right."""
        try:
            authorization_id, user, password = message.decode().split("\0")
        except ValueError:
            raise WrongLogin("the message is not PLAIN") from None
        if not user or not password or max(len(user), len(password)) > NAME_LENGTH_MAX:
            raise WrongLogin("the message has no user or no password")
        if authorization_id not in ("", user):
            raise WrongLogin(f"{user!r} may not act for {authorization_id!r}")
        number = self._users.number_for(user)
        # On a thread: it takes milliseconds.
        if not await asyncio.to_thread(is_password, number, self._users.keys_of(user, number), password):
            raise WrongLogin(f"wrong password or unknown user {user!r}")
        return user


def _answer(version: int, code: ErrorCode, message: str | None, told: bytes = b"", lifetime_ms: int = 0) -> Any:
    return answer_for(AUTHENTICATE, version)(
        "SaslAuthenticateResponse",
        error_code=code,
        error_message=message,
        auth_bytes=told,
        session_lifetime=i64Timedelta.parse(timedelta(milliseconds=lifetime_ms)),
    )
