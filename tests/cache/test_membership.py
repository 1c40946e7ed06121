"""How nodes find each other: in virtual steps, over a store in memory."""

from collections.abc import Mapping

import pytest
from tests.fakes import FakeClock

from braidlog.cache.membership import BEAT_S, GONE_S, Membership, Node
from braidlog.objects.keys import InvalidKey, NodeKey, parse_shuffle_node_key, shuffle_key
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import ListPage, StoreUnavailable

JOB = "job"


class Known:
    """A node, and what it knows of the others."""

    def __init__(self, name: str, store: MemoryStore, clock: FakeClock, zone: str = "a") -> None:
        self.node = Node(name * 16, zone, f"10.0.0.1:{ord(name)}")
        self.changes = 0
        self.membership = Membership(store, JOB, self.node, clock=clock, body=lambda: b"{}", on_change=self._changed)

    def _changed(self, _nodes: Mapping[str, Node]) -> None:
        self.changes += 1

    @property
    def names(self) -> set[str]:
        return {name[0] for name in self.membership.nodes}


def store_at(clock: FakeClock) -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://", clock=clock)


async def test_a_node_that_no_longer_writes_is_gone_after_a_while() -> None:
    clock = FakeClock()
    store = store_at(clock)
    first, second, other = (Known(name, store, clock, zone) for name, zone in (("1", "a"), ("2", "a"), ("3", "b")))
    for each in (first, second, other):
        await each.membership.join()
    assert (first.names, other.names) == ({"1"}, {"1", "2", "3"})
    await first.membership.join()
    assert first.names == {"1", "2", "3"}
    changes = first.changes
    for _ in range(int(GONE_S / BEAT_S)):
        clock.advance(BEAT_S)
        await first.membership.join()
        await other.membership.join()
    assert first.names == {"1", "2", "3"}, "a late beat is not a death"
    assert first.changes == changes
    clock.advance(BEAT_S)
    await first.membership.join()
    assert first.names == {"1", "3"}
    await other.membership.leave()
    await first.membership.join()
    assert first.names == {"1"}


async def test_what_was_left_by_nodes_that_were_killed_long_ago_is_not_believed() -> None:
    clock = FakeClock()
    store = store_at(clock)
    await Known("1", store, clock).membership.join()
    clock.advance(GONE_S + 1)
    late = Known("2", store, clock)
    await late.membership.join()
    assert late.names == {"2"}


async def test_a_node_that_calls_during_a_listing_is_not_forgotten() -> None:
    clock = FakeClock()
    store = store_at(clock)
    first = Known("1", store, clock)
    caller = Node("2" * 16, "a", "10.0.0.1:2")

    class Listing(MemoryStore):
        async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
            page = await super().list(prefix, after=after, limit=limit)
            first.membership.heard_of(caller)
            return page

    first.membership._store = Listing(MemoryBucket(), url="memory://", clock=clock)
    await first.membership.join()
    assert first.names == {"1", "2"}
    first.membership.heard_leaving(caller.name)
    first.membership.heard_leaving(first.node.name)
    assert first.names == {"1"}, "a node never leaves itself"


async def test_what_is_known_survives_a_store_that_fails() -> None:
    clock = FakeClock()
    store = store_at(clock)
    first, second = Known("1", store, clock), Known("2", store, clock)
    await second.membership.join()
    await first.membership.join()
    steps = 0

    class Ended(Exception):
        pass

    class Failing(MemoryStore):
        async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
            nonlocal steps
            steps += 1
            if steps > 3:
                raise Ended
            raise StoreUnavailable("away")

    first.membership._store = Failing(MemoryBucket(), url="memory://", clock=clock)
    with pytest.raises(Ended):
        await first.membership.run()
    assert clock.slept_s == [BEAT_S] * 4
    assert first.names == {"1", "2"}


def test_keys_of_nodes_say_who_they_are() -> None:
    key = NodeKey(JOB, "0123456789abcdef", "eu-1ä/.", "[::1]:9600")
    assert parse_shuffle_node_key(str(key)) == key
    for wrong in (f"shuffle/{JOB}/nodes/x", f"shuffle/{JOB}/nodes/0123456789abcdef.ff.ff", shuffle_key(JOB, "inc", 0)):
        with pytest.raises(InvalidKey):
            parse_shuffle_node_key(wrong)
    with pytest.raises(InvalidKey):
        str(NodeKey(JOB, "no name", "a", "b"))
