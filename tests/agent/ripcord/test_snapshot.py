"""The agents' snapshot: what is written is read, what is damaged is said so, and an older one never wins."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock

from braidlog.agent.cluster.view import ClusterView
from braidlog.agent.ripcord.snapshot import (
    HEADER,
    AgentSnapshot,
    CorruptSnapshot,
    SnapshotKeeper,
    decode_snapshot,
    encode_snapshot,
    snapshot_of,
)
from braidlog.control.interface import AgentInfo, ClientQuota, FeedPosition, Snapshot, TopicInfo
from braidlog.objects.keys import AGENT_SNAPSHOT_KEY
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import NotFound


def memory_store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://", clock=clock)


AGENT = AgentInfo(3, "abc", "host", 9092, "zone-a")


def topic(name: str, partition_count: int = 2) -> TopicInfo:
    return TopicInfo(name.encode().ljust(16, b"\0"), name, list(range(partition_count)), {"a": "b"}, 3, 17)


def snapshot(
    revision: int, *names: str, epoch: int = 1, cluster_id: str = "cluster", taken_ms: int = 0
) -> AgentSnapshot:
    quota = ClientQuota([("client-id", None)], {"producer_byte_rate": 1e6})
    position = FeedPosition(epoch, revision)
    return AgentSnapshot(position, taken_ms, cluster_id, [topic(name) for name in names], [AGENT], {"x": "y"}, [quota])


@settings(max_examples=50)
@given(st.lists(st.text(min_size=1, max_size=10), unique=True, max_size=20), st.integers(0, 2**60))
def test_what_is_written_is_read(names: list[str], revision: int) -> None:
    written = AgentSnapshot(
        FeedPosition(1, revision),
        5,
        "cluster",
        [TopicInfo(bytes(16), name, [1, 2], {}, 1, 0) for name in names],
        [AGENT],
        {},
        [],
    )
    assert decode_snapshot(encode_snapshot(written)) == written


@settings(max_examples=200)
@given(st.integers(0, 10_000), st.integers(1, 255), st.integers(0, 10_000))
def test_damage_is_found(place: int, flip: int, cut: int) -> None:
    data = bytearray(encode_snapshot(snapshot(1, "orders", "clicks")))
    place %= len(data)
    if place in range(10, 12):
        return  # reserved
    damaged = bytearray(data)
    damaged[place] ^= flip
    for bad in (bytes(damaged), bytes(data[: cut % len(data)])):
        with pytest.raises(CorruptSnapshot) as raised:
            decode_snapshot(bad)
        assert raised.value.help


def test_a_version_of_the_future_is_named() -> None:
    data = bytearray(encode_snapshot(snapshot(1)))
    data[8:10] = (7).to_bytes(2, "big")
    assert len(data) > HEADER.size
    with pytest.raises(CorruptSnapshot, match="format version 7"):
        decode_snapshot(data)


def test_a_view_survives_the_journey() -> None:
    view = ClusterView()
    view.load(Snapshot(FeedPosition(4, 5), "cluster", [topic("b"), topic("a")], [], [AGENT], {"k": "v"}))
    taken = decode_snapshot(encode_snapshot(snapshot_of(view, 99)))
    assert taken.position == FeedPosition(4, 5)
    other = ClusterView()
    other.load(taken.as_known())
    assert sorted(other.topics_by_name) == ["a", "b"]
    assert other.agents == {3: AGENT}
    assert other.cluster_id == "cluster"
    assert other.cluster_configs == {"k": "v"}
    assert other.position == FeedPosition(-1, -1)
    assert other.topics_by_name["a"].info == topic("a")


async def test_the_newer_one_wins_whoever_writes_last() -> None:
    store = memory_store(FakeClock())
    mine, yours = SnapshotKeeper(store), SnapshotKeeper(store)
    with pytest.raises(NotFound):
        await mine.read()
    assert await mine.offer(snapshot(5, "a"))
    assert not await mine.offer(snapshot(6, "a"))  # nothing new in it
    assert await yours.offer(snapshot(9, "a", "b"))
    assert not await mine.offer(snapshot(8, "a", "c"))
    assert (await mine.read()).position.revision == 9
    assert await mine.offer(snapshot(1, "c", epoch=2))
    assert [each.name for each in (await yours.read()).topics] == ["c"]


async def test_a_lost_race_is_looked_at_again() -> None:
    store = memory_store(FakeClock())
    mine, yours = SnapshotKeeper(store), SnapshotKeeper(store)
    await mine.offer(snapshot(1, "a"))
    await yours.read()

    current = yours._current

    async def overtaken() -> object:
        found = await current()
        await mine.offer(snapshot(3, "c"))
        return found

    yours._current = overtaken  # type: ignore[method-assign, assignment]
    assert not await yours.offer(snapshot(2, "b"))
    yours._current = current  # type: ignore[method-assign]
    assert not await yours.offer(snapshot(2, "b"))
    assert (await mine.read()).position.revision == 3


async def test_a_damaged_one_is_replaced() -> None:
    store = memory_store(FakeClock())
    await store.put(AGENT_SNAPSHOT_KEY, b"nonsense")
    keeper = SnapshotKeeper(store)
    with pytest.raises(CorruptSnapshot):
        await keeper.read()
    assert await keeper.offer(snapshot(1, "a"))
    assert (await keeper.read()).topics == [topic("a")]


async def test_a_new_metadata_store_over_an_old_bucket() -> None:
    store = memory_store(FakeClock())
    keeper = SnapshotKeeper(store)
    await keeper.offer(snapshot(900, "old", cluster_id="before", taken_ms=10))
    assert await keeper.offer(snapshot(1, "new", cluster_id="after", taken_ms=20))
    assert not await keeper.offer(snapshot(901, "old", cluster_id="before", taken_ms=15))
