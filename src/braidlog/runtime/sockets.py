"""What a connection's socket is told."""

import socket
from contextlib import suppress

_LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})


def leave_unpaced(connection: socket.socket) -> None:
    """Where the peer is on the same machine, choose the congestion control that every Linux has and that does not pace.

    Nothing can be congested on that way. A system that prefers one that paces what it sends (BBR) pays for its timers:
    sending a gigabyte takes half as much CPU again, and it arrives in more and smaller pieces.
    """
    if not hasattr(socket, "TCP_CONGESTION") or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # it may be gone already, and it works as it is
        if connection.getpeername()[0] in _LOOPBACK_HOSTS:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")
