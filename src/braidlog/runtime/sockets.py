"""Options of a connection's socket, and who can reach one that listens."""

import ipaddress
import socket
from contextlib import suppress

_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})


def leave_unpaced(connection: socket.socket) -> None:
    """Turn off pacing for a peer on the same machine.

    It chooses a congestion control that does not pace.

    Loopback cannot be congested. Where the system's default paces (BBR), its timers make a gigabyte cost half as much
    CPU again, and the data arrives in more and smaller pieces.
    """
    if not hasattr(socket, "TCP_CONGESTION") or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # the peer may be gone, and the default works too
        if connection.getpeername()[0] in _LOOPBACK_HOSTS:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def is_beyond_loopback(host: str) -> bool:
    """Whether other machines may reach a socket that is bound to this address."""
    try:
        return not ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False
