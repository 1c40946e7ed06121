"""SCRAM (RFC 5802, RFC 7677).

Keys that prove a password, and the server's side of an exchange.
"""

import hashlib
import hmac
from collections.abc import Callable
from typing import Final, NamedTuple

from scramp import ScramException, ScramMechanism

MECHANISM_NUMBERS: Final = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
"""Kafka's numbers of the mechanisms. Persisted: keep stable."""
MECHANISM_NAMES: Final = {number: name for name, number in MECHANISM_NUMBERS.items()}
_HASHES: Final = {1: "sha256", 2: "sha512"}

ITERATIONS_DEFAULT = 4096
ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16_384
"""As in Kafka: more would let a client keep the agent busy."""


class WrongLogin(Exception):
    """The client did not prove who it is. The text is for the log, not for the client."""


class ScramKeys(NamedTuple):
    """What proves a password without being one."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramKeys(iterations={self.iterations}, …)"


def keys_of_salted(number: int, salt: bytes, iterations: int, salted_password: bytes) -> ScramKeys:
    """The keys for a password that the client has salted and iterated."""
    name = _HASHES[number]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramKeys(
        salt, iterations, hashlib.new(name, client_key).digest(), hmac.digest(salted_password, b"Server Key", name)
    )


def keys_of_password(number: int, password: str, salt: bytes, iterations: int = ITERATIONS_DEFAULT) -> ScramKeys:
    """The keys for a password. This takes milliseconds, on purpose."""
    salted = hashlib.pbkdf2_hmac(_HASHES[number], password.encode(), salt, iterations)
    return keys_of_salted(number, salt, iterations, salted)


def is_password(number: int, keys: ScramKeys, password: str) -> bool:
    """Whether a password is the one of the keys. It takes as long if it is not."""
    given = keys_of_password(number, password, keys.salt, keys.iterations)
    return hmac.compare_digest(given.stored_key, keys.stored_key)


def fake_keys(number: int, user: str, secret: bytes) -> ScramKeys:
    """Keys that no password has, for a user that does not exist.

    They are the same each time, so that nobody can tell such a user from one that exists.
    """
    name = _HASHES[number]
    digest = hmac.digest(secret, user.encode(), name)
    return ScramKeys(digest[:16], ITERATIONS_DEFAULT, hmac.digest(digest, b"stored", name), digest)


class ScramExchange:
    """The server's side: two messages of the client, each with an answer."""

    def __init__(self, mechanism: str, find_keys: Callable[[str], ScramKeys], nonce: str) -> None:
        self.user = ""
        self.is_done = False
        self._find_keys = find_keys
        self._server = ScramMechanism(mechanism).make_server(self._keys, s_nonce=nonce)
        self._has_begun = False

    def _keys(self, user: str) -> tuple[bytes, bytes, bytes, int]:
        self.user = user
        salt, iterations, stored_key, server_key = self._find_keys(user)
        return salt, stored_key, server_key, iterations

    def answer(self, message: bytes) -> bytes:
        """Answer a message. Raises `WrongLogin` if it proves nothing."""
        try:
            text = message.decode()
            if not self._has_begun:
                self._has_begun = True
                self._server.set_client_first(text)
                return str(self._server.get_server_first()).encode()
            self._server.set_client_final(text)
            final = str(self._server.get_server_final()).encode()
        except (ScramException, ValueError, KeyError, IndexError) as error:
            raise WrongLogin(f"{type(error).__name__} in the exchange of {self.user!r}") from error
        self.is_done = True
        return final
