"""The agent's certificates: read from files, and again when the files change."""

import asyncio
import ssl
from pathlib import Path

import structlog

from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.security_settings import SecuritySettings

log = structlog.get_logger(__name__)

LOOK_INTERVAL_S = 1.0
"""How often to look whether a file has changed."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: forward secret and authenticated. TLS 1.3 has no others."""

_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


def server_context(settings: SecuritySettings) -> ssl.SSLContext:
    """The TLS context of the agent's listeners.

    Raises `InvalidSetting` for files that will not do.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    _load(context, settings)
    context.verify_mode = _VERIFY[settings.ssl_client_auth]
    return context


def _load(context: ssl.SSLContext, settings: SecuritySettings) -> None:
    try:
        context.load_cert_chain(settings.ssl_certificate_file, settings.ssl_key_file, password=_no_password)
        if settings.ssl_ca_file:
            context.load_verify_locations(settings.ssl_ca_file)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidSetting(
            f"the certificate cannot be used: {error.strerror or error}"
            if isinstance(error, OSError)
            else f"the certificate cannot be used: {error}",
            help="Check ssl_certificate_file, ssl_key_file and ssl_ca_file: PEM files, and the key of the certificate.",
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password, and nobody is there to type it")


class Certificates:
    """Holds the context, and reads changed files into it.

    Connections that exist go on with the old ones.
    """

    def __init__(self, settings: SecuritySettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        files = (settings.ssl_certificate_file, settings.ssl_key_file, settings.ssl_ca_file)
        self._paths = [Path(name) for name in files if name]
        self._stamps = self._look()
        self.context = server_context(settings)
        self.reloads = 0

    def _look(self) -> list[tuple[int, int, int]]:
        stamps: list[tuple[int, int, int]] = []
        for path in self._paths:
            try:
                stat = path.stat()
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((stat.st_mtime_ns, stat.st_ino, stat.st_size))
        return stamps

    def reload_if_changed(self) -> bool:
        """Read the files again if they have changed. Returns whether new ones are in use.

        Files that do not fit, such as half of a change, leave the old ones in place.
        """
        stamps = self._look()
        if stamps == self._stamps:
            return False
        try:
            server_context(self._settings)  # a trial: a context that fails half-way would be of no use
            _load(self.context, self._settings)
        except InvalidSetting as error:
            log.warning("the new certificate is not used", error=str(error), help=error.help)
            return False
        self._stamps = stamps
        self.reloads += 1
        log.info("certificate read again", file=self._settings.ssl_certificate_file)
        return True

    async def follow(self) -> None:
        """Look for changed files for ever."""
        while True:
            await self._clock.sleep(LOOK_INTERVAL_S)
            await asyncio.to_thread(self.reload_if_changed)
