"""Journals in any order, repeated, and with crashes in between: every record once, in each producer's order."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.driver import Plane, batch, create_topic, new_producer, start_plane
from tests.control.journals.driver import LIGHTNING, ReplayingAgent, journal_file, read_log
from tests.fakes import FakeClock

from braidlog.control.interface import CommitObject, RequestScan, TopicInfo
from braidlog.control.journals.settings import JournalSettings
from braidlog.control.settings import ControlSettings
from braidlog.objects.layout import BatchEntry

PARTITIONS = 2
SETTINGS = ControlSettings(
    recent_extents_max=3,
    producer_states_max=3,
    session_timeout_s=10**6,
    producer_expiration_s=10**6,
    journals=JournalSettings(gap_s=60.0, held_batches_max=10**6, replay_files_per_s=0),
)


@dataclass
class History:
    """What idempotent producers have written, each to any of several agents, some of it twice."""

    batches: list[tuple[int, int, int]]
    """Producer, partition and count, in the order in which each producer sends them."""
    agents: list[int]
    """The agent of each."""
    epoch_ends: set[int]
    """Batches before which their producer begins a new epoch."""
    repeated: set[int]
    """Batches that are sent once more, to the next agent."""
    order: list[int]
    """The order in which the files arrive: some more than once, some only with the replay at the end."""
    restarts: set[int]
    """Steps before which the control plane is restarted."""


@st.composite
def histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(1, 16))
    places = st.integers(0, count - 1)
    batches = draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(0, PARTITIONS - 1), st.integers(1, 3)),
            min_size=count,
            max_size=count,
        )
    )
    return History(
        batches,
        draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
        draw(st.sets(places, max_size=3)),
        draw(st.sets(places, max_size=5)),
        draw(st.lists(st.integers(0, 2 * count), max_size=3 * count)),
        draw(st.sets(st.integers(0, 3 * count), max_size=3)),
    )


@dataclass
class Made:
    files: list[CommitObject] = field(default_factory=list)
    sent: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    """Epoch, sequence and count of each batch in the order of sending, by producer and partition."""


def write(history: History, topic: TopicInfo, producer_ids: list[int]) -> Made:
    made = Made()
    epochs = dict.fromkeys(producer_ids, 0)
    following: dict[tuple[int, int], int] = {}
    slots = [0, 0, 0]

    def journal(agent: int, partition: int, entry: BatchEntry) -> None:
        extents = [(topic.topic_id, partition, [entry])]
        made.files.append(journal_file(extents, slots[agent], incarnation=f"agent-{agent}"))
        slots[agent] += 1

    for place, ((producer, partition, count), agent) in enumerate(zip(history.batches, history.agents, strict=True)):
        pid = producer_ids[producer]
        if place in history.epoch_ends:
            epochs[pid] += 1
            for key in [key for key in following if key[0] == pid]:
                following[key] = 0
        sequence = following.get((pid, partition), 0)
        following[pid, partition] = sequence + count
        made.sent.setdefault((pid, partition), []).append((epochs[pid], sequence, count))
        entry = batch(count, pid, epochs[pid], sequence)
        journal(agent, partition, entry)
        if place in history.repeated:
            journal((agent + 1) % 3, partition, entry)
    return made


async def restart(plane: Plane, url: str) -> None:
    await plane.service.close()
    again = await start_plane(url, clock=plane.clock, bucket=plane.bucket, settings=SETTINGS)
    plane.service, plane.metadata = again.service, again.metadata


async def logs(plane: Plane, topic: TopicInfo, made: Made) -> dict[tuple[int, int], list[tuple[int, int, int]]]:
    footers = {file.key: file for file in made.files}
    found: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for partition, partition_id in enumerate(topic.partition_ids):
        for entry in await read_log(plane.service, partition_id, footers):
            written = entry.producer_epoch, entry.base_sequence, entry.offset_count
            found.setdefault((entry.producer_id, partition), []).append(written)
    return found


async def follow(history: History, folder: Path, *, gives_up: bool) -> None:
    url = f"sqlite://{folder}/metadata.db"
    plane = await start_plane(url, clock=FakeClock(sleepers_wait=True), settings=SETTINGS)
    try:
        topic = await create_topic(plane.service, "t", PARTITIONS, **LIGHTNING)
        producer_ids = [await new_producer(plane.service) for _ in range(3)]
        made = write(history, topic, producer_ids)
        agent = ReplayingAgent(plane)
        for file in made.files:
            await agent.put(file)
        for step, place in enumerate(history.order):
            if step in history.restarts:
                await restart(plane, url)
            await plane.service.commit_object(made.files[place % len(made.files)])
            if gives_up and step % 4 == 3:
                plane.clock.advance(SETTINGS.journals.gap_s_max)
                await plane.service.parts.journals.give_up_once()
        await restart(plane, url)
        await plane.service.request_scan(RequestScan("test"))
        await agent.work()
        assert plane.service.parts.journals.statistics().held_batches == 0
        found = await logs(plane, topic, made)
        if gives_up:
            assert {key: sorted(log) for key, log in found.items()} == {
                key: sorted(sent) for key, sent in made.sent.items()
            }
        else:
            assert {key: by_epoch(log) for key, log in found.items()} == {
                key: by_epoch(sent) for key, sent in made.sent.items()
            }
        await check_counts(plane)
    finally:
        await plane.service.close()


def by_epoch(log: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int, int]]]:
    """Where nothing of an epoch waits, the next may begin before all of it is there."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for written in log:
        found.setdefault(written[0], []).append(written)
    return found


async def check_counts(plane: Plane) -> None:
    """Each object counts the extents that point to it: what it counts too many is never swept, too few too early."""
    await plane.service.parts.recent.settle()
    rows = await plane.metadata.read(
        lambda tx: tx.query(
            "SELECT o.live_count, (SELECT COUNT(*) FROM extents e WHERE e.object_number = o.number) FROM objects o"
        )
    )
    assert all(live == count for live, count in rows)


@settings(max_examples=40, deadline=None)
@given(histories())
def test_every_record_is_sequenced_once_and_in_its_producers_order(history: History) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(follow(history, Path(folder), gives_up=False))


@settings(max_examples=25, deadline=None)
@given(histories())
def test_every_record_is_sequenced_once_also_where_gaps_are_given_up(history: History) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(follow(history, Path(folder), gives_up=True))
