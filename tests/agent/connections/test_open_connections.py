"""Connections that find no place, or whose client is nobody, are closed before they are served."""

import struct
from typing import Any, cast

import pytest
from tests.fakes import FakeClock

from braidlog.agent.connections.connection import KafkaConnection
from braidlog.agent.connections.open_connections import OpenConnections
from braidlog.agent.connections.request_meters import RequestMeters
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.entrance.entrance import Entrance
from braidlog.runtime.quantities import Address
from braidlog.runtime.security_settings import Listener
from braidlog.runtime.turns import Turns
from braidlog.security.acls import DESCRIBE
from braidlog.security.certificates import PrincipalRules
from braidlog.security.decisions import AclBook
from braidlog.security.rights import Authorizer, AuthorizerRules

ALICE = {"subject": ((("commonName", "alice"),),)}
FRAME = struct.pack(">i", 4) + b"ping"


class Transport:
    def __init__(self, host: str, certificate: Any = None) -> None:
        self._facts = {"peername": (host, 1), "peercert": certificate}
        self.is_closed = False

    def get_extra_info(self, name: str) -> Any:
        return self._facts.get(name)

    def set_write_buffer_limits(self, *, high: int) -> None: ...

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class World:
    """Connections of one listener, whose requests are only counted."""

    def __init__(self, *, per_address_max: int = 100, rules: str = "DEFAULT", super_users: str = "") -> None:
        clock = FakeClock()
        authorizer = Authorizer(AclBook(), AuthorizerRules(is_on=True, super_users=frozenset({super_users})))
        self.open = OpenConnections(
            clock,
            Turns(clock),
            RequestMeters([]),
            authorizer,
            per_address_max=per_address_max,
            request_bytes_max=1 << 20,
            response_bytes_max=1 << 20,
        )
        address = Address("127.0.0.1", 9092)
        self._entrance = Entrance(Listener("SSL", "SSL", address, address), PrincipalRules(rules))
        self.taken = 0

    def dispatch(self, connection: KafkaConnection, frame: memoryview, slot: ResponseSlot) -> None:
        self.taken += 1

    def new(self) -> KafkaConnection:
        return KafkaConnection(self.open, self, self._entrance)

    def connect(self, host: str, certificate: Any = None) -> KafkaConnection:
        connection = self.new()
        connection.connection_made(cast(Any, Transport(host, certificate)))
        connection.get_buffer(-1)[: len(FRAME)] = FRAME
        connection.buffer_updated(len(FRAME))
        return connection


async def test_an_address_has_so_many_connections_and_no_more() -> None:
    world = World(per_address_max=2)
    first, second, third, other = [world.connect(host) for host in ("10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2")]
    assert [each.is_closed for each in (first, second, third, other)] == [False, False, True, False]
    assert (len(world.open), world.taken) == (3, 3)
    third.connection_lost(None)
    assert world.connect("10.0.0.1").is_closed, "one that was refused leaves no place"
    first.connection_lost(None)
    assert not world.connect("10.0.0.1").is_closed


@pytest.mark.parametrize(("certificate", "is_served"), [(None, True), (ALICE, False)])
async def test_a_certificate_that_no_rule_knows_is_not_served_as_anonymous(certificate: Any, is_served: bool) -> None:
    """Kafka refuses it too. Who has shown none may even be a super user, on a listener for the nodes' network."""
    world = World(rules="RULE:^OU=(.*)$/$1/", super_users="User:ANONYMOUS")
    connection = world.connect("10.0.0.1", certificate)
    assert (connection.is_closed, world.taken, len(world.open)) == (not is_served, is_served, is_served)
    connection.connection_lost(None)


async def test_a_client_that_nobody_knows_yet_may_do_nothing() -> None:
    assert not World().new().rights.cluster(DESCRIBE)
