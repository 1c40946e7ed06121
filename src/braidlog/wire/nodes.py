"""The current leader of a partition, as tagged fields.

Produce and Fetch responses share them.
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from braidlog.wire.primitives import count_of, nullable_string, pack_i32, string

_LEADER = Struct(">iiB")


class CurrentLeader(NamedTuple):
    leader_id: int = -1
    leader_epoch: int = -1


NO_LEADER = CurrentLeader()


class NodeEndpoint(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None = None


def leader_value(leader: CurrentLeader) -> bytes:
    return _LEADER.pack(leader[0], leader[1], 0)


def node_endpoints_value(endpoints: Sequence[NodeEndpoint]) -> bytes:
    parts = [count_of(len(endpoints), True)]
    for node_id, host, port, rack in endpoints:
        parts += (pack_i32(node_id), string(host, True), pack_i32(port), nullable_string(rack, True), b"\x00")
    return b"".join(parts)
