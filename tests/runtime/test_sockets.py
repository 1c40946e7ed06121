"""Connections to the same machine are not paced, and others are left alone."""

import socket

import pytest

from braidlog.runtime.sockets import leave_unpaced

pytestmark = pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="a choice that only Linux has")


def test_a_connection_to_the_same_machine_is_not_paced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            for connection in (client, accepted):
                leave_unpaced(connection)
                chosen = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
                assert chosen.rstrip(b"\0") == b"reno"


def test_what_is_no_tcp_connection_stays_as_it_is() -> None:
    left, right = socket.socketpair()
    with left, right:
        leave_unpaced(left)
    leave_unpaced(left)  # closed by now
    with socket.socket() as unconnected:
        before = unconnected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        leave_unpaced(unconnected)
        assert unconnected.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16) == before
