"""The agent's open ports, one for each listener."""

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from braidlog.agent.entrance.certificates import Certificates
from braidlog.agent.entrance.entrance import Entrance
from braidlog.runtime.clock import Clock
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.security_settings import Listener
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.sockets import is_beyond_loopback
from braidlog.security.certificates import PrincipalRules

log = structlog.get_logger(__name__)

BACKLOG = 1024
HANDSHAKE_S_MAX = 10.0
"""How long a client may take for the handshake of TLS."""


class Listening:
    def __init__(self, settings: AgentSettings, clock: Clock) -> None:
        """Raises `InvalidSetting` if the certificates or the rules for them will not do."""
        self._listeners = settings.all_listeners
        self._client_auth = settings.ssl_client_auth
        is_encrypted = any(listener.is_encrypted for listener in self._listeners)
        self.certificates = Certificates(settings, clock) if is_encrypted else None
        try:
            self._rules = PrincipalRules(settings.ssl_principal_mapping_rules)
        except ValueError as error:
            raise InvalidSetting(
                f"ssl_principal_mapping_rules: {error}", help="For example: RULE:^CN=(.*?),.*$/$1/,DEFAULT"
            ) from None
        self._servers: list[asyncio.Server] = []
        self.ports: dict[str, int] = {}
        """The port of each listener, by its name."""
        self.is_serving = False

    @property
    def addresses(self) -> dict[str, tuple[str, int]]:
        """The host and port that the clients of each listener are told.

        The first is that of `listen`.
        """
        return {listener.name: self._told(listener) for listener in self._listeners}

    def _told(self, listener: Listener) -> tuple[str, int]:
        if listener.advertised is listener.listen:
            return listener.listen.host, self.ports[listener.name]
        return listener.advertised.host, listener.advertised.port

    async def open(self, connect: Callable[[Entrance], asyncio.BaseProtocol]) -> None:
        """Bind all ports. Clients can connect, and are served after `serve`."""
        try:
            for listener in self._listeners:
                server = await self._bind(listener, connect)
                self._servers.append(server)
                self.ports[listener.name] = server.sockets[0].getsockname()[1]
        except BaseException:
            self.close()
            raise

    async def _bind(self, listener: Listener, connect: Callable[[Entrance], asyncio.BaseProtocol]) -> asyncio.Server:
        entrance = Entrance(listener, self._rules)
        options: dict[str, Any] = {}
        if listener.is_encrypted:
            assert self.certificates is not None
            options = {"ssl": self.certificates.context, "ssl_handshake_timeout": HANDSHAKE_S_MAX}
        address = listener.listen
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: connect(entrance), address.host, address.port, backlog=BACKLOG, start_serving=False, **options
            )
        except OSError as error:
            raise InvalidSetting(
                f"cannot listen on {address.host}:{address.port}: {error.strerror or error}",
                help="Stop what uses the port, or give another address with --listen.",
            ) from error
        self._warn_if_open(listener, [bound.getsockname()[0] for bound in server.sockets])
        return server

    def _warn_if_open(self, listener: Listener, bound_hosts: list[str]) -> None:
        """Say so if strangers may come in.

        They may where a port is beyond loopback and nobody is asked who it is. What a name stands for shows only when
        it is bound.
        """
        asks = listener.wants_sasl or (listener.is_encrypted and self._client_auth == "required")
        if not asks and any(is_beyond_loopback(host) for host in bound_hosts):
            log.warning(
                "anyone who reaches this port may come in",
                listener=listener.name,
                address=str(listener.listen),
                help="Keep it inside a network that you trust, or set security_protocol: see docs/security.md.",
            )

    async def serve(self) -> None:
        for server in self._servers:
            await server.start_serving()
        self.is_serving = True

    def close(self) -> None:
        for server in self._servers:
            server.close()
