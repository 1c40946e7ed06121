"""Finds out at once whether a server listens at an address.

Kafka clients would retry until their timeout.
"""

import socket

from braidlog.clients.errors import CommandError, WrongUsage
from braidlog.runtime.quantities import Address

CONNECT_TIMEOUT_S = 2.0
"""The kernel accepts a connection in milliseconds, however busy the server is."""


def check_listens(addresses: str, option: str, complaint: str, advice: str) -> Address:
    """Give the first of the comma-separated addresses that accepts a connection.

    Raises the reason if none does.
    """
    why = "no address was given"
    for text in addresses.split(","):
        try:
            address = Address.parse(text.strip().rpartition("://")[2])
        except ValueError as error:
            raise WrongUsage(f"{option} {text!r} {error}", help=f"For example: {option} 127.0.0.1:9092") from None
        try:
            socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S).close()
            return address
        except (OSError, UnicodeError) as error:  # UnicodeError: the host name cannot be encoded
            why = getattr(error, "strerror", None) or str(error)
    raise CommandError(f"{complaint} {addresses}: {why}", help=advice)
