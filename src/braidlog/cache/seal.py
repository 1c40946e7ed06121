"""Proves that a call comes from a process that knows a secret.

A seal is a code over the name of the method and the whole body, so that neither can be changed on the way. It does not
hide anything, and it does not cover answers.
"""

from hashlib import blake2b
from hmac import compare_digest

from braidlog.runtime.errors import BraidError, Remedy

SEAL_BYTES = 16


class WrongSeal(BraidError):
    """Raised for a call whose sender does not know the secret."""

    remedy = Remedy.GIVE_UP


class Seal:
    def __init__(self, secret: str) -> None:
        """The secret must be hard to guess. It has at most 64 bytes."""
        self._secret = secret.encode()

    def close(self, method: str, body: bytes) -> bytes:
        """Return the body with its seal in front."""
        return self._code(method, body) + body

    def open(self, method: str, sealed: bytes) -> bytes:
        """Return the body if its seal is right, and raise `WrongSeal` otherwise."""
        code, body = sealed[:SEAL_BYTES], sealed[SEAL_BYTES:]
        if not compare_digest(code, self._code(method, body)):
            raise WrongSeal("a call has the wrong seal", help="It comes from another application, or from a stranger.")
        return body

    def _code(self, method: str, body: bytes) -> bytes:
        return blake2b(method.encode() + b"\0" + body, digest_size=SEAL_BYTES, key=self._secret).digest()
