"""The agent's view of the cluster as the feed moves it along."""

import asyncio
from collections import Counter

import pytest

from braidlog.agent.cluster.placement import candidates_for, leader_for, places_of, zone_of_client
from braidlog.agent.cluster.view import ABORTED_MAX, TAIL_EXTENTS_MAX, ClusterView, Place
from braidlog.control.interface import (
    AbortedRange,
    AgentChanged,
    AgentInfo,
    AgentRemoved,
    BoundsChanged,
    FeedPosition,
    IndexedExtent,
    ObjectSequenced,
    PartitionBounds,
    Snapshot,
    StoredObject,
    TopicChanged,
    TopicInfo,
    TopicRemoved,
    TransactionsEnded,
)

TOPIC = b"t" * 16


def loaded_view() -> ClusterView:
    view = ClusterView()
    topic = TopicInfo(TOPIC, "orders", [11, 12], {}, 1, 0)
    agents = [AgentInfo(1, "a", "h1", 1, "z1"), AgentInfo(2, "b", "h2", 2, "z2"), AgentInfo(3, "c", "h3", 3, "z2")]
    bounds = [PartitionBounds(11, 0, 10, 100), PartitionBounds(12, 0, 0, 0)]
    view.load(Snapshot(FeedPosition(1, 5), "cluster", [topic], bounds, agents, {}))
    return view


def sequenced(number: int, partition_id: int, base_offset: int, end_offset: int) -> ObjectSequenced:
    extent = IndexedExtent(partition_id, base_offset, end_offset, number, 0, 50, 0, 0)
    return ObjectSequenced(StoredObject(number, f"key-{number}", 100), [extent])


def test_a_sequenced_object_moves_the_high_watermark_and_the_tail() -> None:
    view = loaded_view()
    partition = view.partitions[11]
    assert partition.tail_from(3, 1 << 20) is None
    view.apply([sequenced(1, 11, 10, 15), sequenced(2, 11, 15, 20)], FeedPosition(1, 7))
    assert partition.high_watermark == 20
    assert partition.size_bytes == 200
    tail = partition.tail_from(16, 1 << 20)
    assert tail is not None
    assert [extent.base_offset for extent, _ in tail] == [15]
    assert partition.tail_from(9, 1 << 20) is None
    assert partition.tail_from(20, 1 << 20) == []


def test_the_tail_is_bounded_and_a_gap_clears_it() -> None:
    view = loaded_view()
    partition = view.partitions[11]
    for at in range(TAIL_EXTENTS_MAX + 10):
        view.apply([sequenced(at, 11, 10 + at, 11 + at)], FeedPosition(1, 6 + at))
    assert len(partition.tail) == TAIL_EXTENTS_MAX
    view.apply([sequenced(999, 11, 500, 501)], FeedPosition(1, 999))
    assert len(partition.tail) == 1
    assert partition.high_watermark == 501


def test_new_partitions_begin_in_the_clusters_leader_epoch() -> None:
    view = loaded_view()
    grown = TopicInfo(TOPIC, "orders", [11, 12, 13], {}, 1, 0, {}, 4)
    view.apply([TopicChanged(grown)], FeedPosition(1, 6))
    assert [view.partitions[each].leader_epoch for each in (11, 13)] == [0, 4]
    bounds = [PartitionBounds(11, 0, 10, 100, -1, 0, ((0, 0), (4, 7)))]
    view.load(Snapshot(FeedPosition(1, 7), "cluster", [grown], bounds, [], {}))
    assert view.partitions[11].leader_epochs == ((0, 0), (4, 7))


async def test_waiting_fetches_are_woken_by_data_by_removed_records_and_by_a_reload() -> None:
    view = loaded_view()
    loop = asyncio.get_running_loop()
    events = [
        lambda: view.apply([sequenced(1, 11, 10, 15)], FeedPosition(1, 6)),
        lambda: view.apply([BoundsChanged(PartitionBounds(11, 5, 15, 50))], FeedPosition(1, 7)),
        lambda: view.apply([TopicRemoved(TOPIC)], FeedPosition(1, 8)),
    ]
    for event in events:
        waiter: asyncio.Future[None] = loop.create_future()
        view.partitions[11].waiters[waiter] = None
        event()
        assert waiter.done()


def test_a_removed_and_recreated_topic_is_another_one() -> None:
    view = loaded_view()
    other = TopicInfo(b"u" * 16, "orders", [13], {}, 1, 0)
    view.apply([TopicRemoved(TOPIC), TopicChanged(other)], FeedPosition(1, 6))
    assert view.topics_by_name["orders"].info.topic_id == b"u" * 16
    assert sorted(view.partitions) == [13]
    assert view.partition("orders", 0) is view.partitions[13]
    assert view.partition("orders", 1) is None


def test_new_partitions_keep_what_is_known_of_the_old_ones() -> None:
    view = loaded_view()
    view.apply([TopicChanged(TopicInfo(TOPIC, "orders", [11, 12, 14], {}, 1, 0))], FeedPosition(1, 6))
    assert view.partitions[11].high_watermark == 10
    assert view.partitions[14].index == 2


def dealt_view(topics: int, partitions: int, agents: int) -> ClusterView:
    view = ClusterView()
    infos = [
        TopicInfo(bytes([number]) * 16, f"t{number}", [number * 1000 + i for i in range(partitions)], {}, 2, 0)
        for number in range(topics)
    ]
    registered = [AgentInfo(node_id, f"{node_id}", "h", node_id, "") for node_id in range(1, agents + 1)]
    view.load(Snapshot(FeedPosition(1, 5), "cluster", infos, [], registered, {}))
    return view


def leaders(view: ClusterView, zone: str = "") -> list[int]:
    return [leader_for(view, partition, zone) for partition in view.partitions.values()]


@pytest.mark.parametrize(("partitions", "agents"), [(6, 3), (7, 3), (1, 3), (2, 5), (100, 7)])
def test_each_topic_is_dealt_out_evenly(partitions: int, agents: int) -> None:
    view = dealt_view(10, partitions, agents)
    for topic in view.topics_by_id.values():
        led = Counter(leader_for(view, partition, "") for partition in topic.partitions)
        counts = [led[node_id] for node_id in view.agents]
        assert max(counts) - min(counts) <= 1
    assert set(leaders(view)) == set(view.agents)  # topics do not all begin with the same agent


def test_when_an_agent_goes_little_moves_that_it_did_not_lead() -> None:
    view = dealt_view(20, 12, 4)
    before = leaders(view)
    view.apply([AgentRemoved(2)], FeedPosition(1, 6))
    after = leaders(view)
    assert 2 not in after
    moved = sum(now != then for now, then in zip(after, before, strict=True))
    assert before.count(2) <= moved < 2 * before.count(2)
    view.apply([AgentChanged(AgentInfo(2, "x", "h", 9, "z9"))], FeedPosition(1, 7))
    assert leaders(view) == before


def test_zones_that_clients_make_up_are_not_remembered() -> None:
    view = dealt_view(1, 3, 3)
    for number in range(100):
        leaders(view, f"nowhere-{number}")
    assert len(view.topics_by_name["t0"].places) == 1


def test_replicas_that_were_named_by_hand() -> None:
    view = loaded_view()
    view.apply([TopicChanged(TopicInfo(TOPIC, "orders", [11, 12], {}, 2, 0, {0: [3, 1]}))], FeedPosition(1, 6))
    topic = view.topics_by_id[TOPIC]
    assert places_of(view, topic, "")[0] == Place(3, (3, 1), (3, 1))
    assert places_of(view, topic, "z1")[0] == Place(1, (3, 1), (3, 1))
    view.apply([AgentRemoved(3)], FeedPosition(1, 7))
    assert places_of(view, topic, "z2")[0] == Place(1, (3, 1), (1,), (3,))
    view.apply([AgentRemoved(1)], FeedPosition(1, 8))
    assert places_of(view, topic, "")[0] == Place(2, (3, 1), (2,), (3, 1))  # the log can be read all the same


def test_clients_that_name_their_zone_are_sent_to_its_agents() -> None:
    view = loaded_view()
    assert zone_of_client("orders-writer,zone=z2,x=y") == "z2"
    assert zone_of_client("orders-writer") == ""
    assert {agent.node_id for agent in candidates_for(view, "z2")} == {2, 3}
    assert {agent.node_id for agent in candidates_for(view, "nowhere")} == {1, 2, 3}
    assert leader_for(view, view.partitions[11], "z1") == 1


def ended(number: int, offset: int, unstable: int = -1, first_offset: int = -1) -> TransactionsEnded:
    """A marker in partition 11; with a first offset, of an aborted transaction of producer 7."""
    extent = IndexedExtent(11, offset, offset + 1, number, 0, 78, 0, 0, b"marker")
    aborted = [AbortedRange(11, 7, first_offset, offset)] if first_offset >= 0 else []
    return TransactionsEnded(number, [extent], [(11, unstable)], aborted)


def test_open_transactions_hold_back_the_stable_offset() -> None:
    view = loaded_view()
    partition = view.partitions[11]
    assert partition.last_stable_offset == 10
    opening = sequenced(1, 11, 10, 15)
    opening = ObjectSequenced(opening.object, opening.extents, [(11, 12)])
    view.apply([opening, sequenced(2, 11, 15, 20)], FeedPosition(1, 7))
    assert (partition.last_stable_offset, partition.high_watermark) == (12, 20)
    view.apply([ended(3, 20, unstable=16)], FeedPosition(1, 8))
    assert (partition.last_stable_offset, partition.high_watermark) == (16, 21)
    view.apply([ended(4, 21)], FeedPosition(1, 9))
    assert (partition.last_stable_offset, partition.high_watermark) == (22, 22)
    tail = partition.tail_from(20, 1 << 20)
    assert tail is not None
    assert [extent.inline for extent, _ in tail] == [b"marker", b"marker"]
    view.apply([BoundsChanged(PartitionBounds(11, 5, 22, 50, 21))], FeedPosition(1, 10))
    assert partition.last_stable_offset == 21


def test_aborted_transactions_are_known_as_far_back_as_they_are_kept() -> None:
    view = ClusterView()
    topic = TopicInfo(TOPIC, "orders", [11], {}, 1, 0)
    view.load(Snapshot(FeedPosition(1, 5), "cluster", [topic], [PartitionBounds(11, 0, 10, 100, 3, 8)], [], {}))
    partition = view.partitions[11]
    assert partition.last_stable_offset == 3
    assert partition.aborted_within(7, 10) is None
    assert partition.aborted_within(8, 10) == []
    view.apply([ended(1, 10, first_offset=9), ended(2, 11, first_offset=4)], FeedPosition(1, 7))
    assert partition.aborted_within(8, 12) == [(7, 9), (7, 4)]
    assert partition.aborted_within(8, 9) == [(7, 4)]
    assert partition.aborted_within(11, 12) == [(7, 4)]
    for at in range(ABORTED_MAX):
        view.apply([ended(3 + at, 12 + at, first_offset=12)], FeedPosition(1, 8 + at))
    assert partition.aborted_within(11, 100) is None
    found = partition.aborted_within(12, 100)
    assert found is not None
    assert len(found) == ABORTED_MAX
