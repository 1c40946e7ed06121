"""How commands connect where agents want TLS or a login.

They read a file of client properties, as Kafka's own tools and librdkafka have it: lines such as
`security.protocol=SASL_SSL`.
"""

import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from braidlog.clients.errors import CommandError

VARIABLE = "BRAIDLOG_CLIENT_CONFIG"
_HELP = "Lines look like: security.protocol=SASL_SSL. docs/security.md has an example."

Ask = Callable[[int, int, Any], Any]
"""Sends a request, by API key and version, and gives the answer."""


def client_properties() -> dict[str, str]:
    """The properties of the file that `BRAIDLOG_CLIENT_CONFIG` names; none without it."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        return {}
    try:
        lines = Path(name).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"{VARIABLE}={name} cannot be read: {error}", help=_HELP) from None
    properties: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not equals:
            raise CommandError(f"line {number} of {name} has no equals sign", help=_HELP)
        properties[key.strip()] = value.strip()
    return properties


def protected(connection: socket.socket, host: str, properties: dict[str, str]) -> socket.socket:
    """The connection, with TLS if the properties say so."""
    if "SSL" not in properties.get("security.protocol", ""):
        return connection
    context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"))
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if properties.get("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    if "ssl.certificate.location" in properties:
        context.load_cert_chain(properties["ssl.certificate.location"], properties.get("ssl.key.location"))
    return context.wrap_socket(connection, server_hostname=host)


def log_in(ask: Ask, properties: dict[str, str]) -> None:
    """Log in with SASL if the properties say so."""
    if not properties.get("security.protocol", "").startswith("SASL"):
        return
    from braidlog.wire.calls import request_types

    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or "SCRAM-SHA-512"
    user, password = properties.get("sasl.username", ""), properties.get("sasl.password", "")
    shaken = ask(17, 1, request_types(17, 1).SaslHandshakeRequest(mechanism=mechanism))
    if shaken.error_code:
        offered = ", ".join(shaken.mechanisms)
        raise CommandError(f"the agent does not take {mechanism}", help=f"Set sasl.mechanism to one of: {offered}.")

    def prove(message: bytes) -> bytes:
        answer = ask(36, 2, request_types(36, 2).SaslAuthenticateRequest(auth_bytes=message))
        if answer.error_code:
            raise CommandError(answer.error_message or "the login failed", help=f"Check the file {VARIABLE} names.")
        return bytes(answer.auth_bytes)

    if mechanism == "PLAIN":
        prove(f"\0{user}\0{password}".encode())
        return
    from scramp import ScramClient, ScramException

    try:
        client = ScramClient([mechanism], user, password)
        client.set_server_first(prove(client.get_client_first().encode()).decode())
        client.set_server_final(prove(client.get_client_final().encode()).decode())
    except ScramException as error:
        raise CommandError(f"the login failed: {error}", help=f"Check the file that {VARIABLE} names.") from None
