"""Transactions against a model that is too simple to be wrong, over restarts and removals."""

import asyncio
import tempfile
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.driver import Plane, batch, commit, create_topic, start_plane
from tests.control.transactions.driver import TransactionalProducer, aborted, bounds, markers, stable_offset

from braidlog.control.interface import DeleteRecords, TopicInfo
from braidlog.control.settings import ControlSettings
from braidlog.control.transactions.settings import TransactionSettings
from braidlog.records.marker import MarkerType

PARTITIONS = 3
PRODUCERS = 3
SETTINGS = ControlSettings(
    recent_extents_max=4,
    transactions=TransactionSettings(timeout_check_interval_s=1e9, expiry_check_interval_s=1e9),
)


@dataclass
class Model:
    next_offset: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    log_start: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    open: list[dict[int, int]] = field(default_factory=lambda: [{} for _ in range(PARTITIONS)])
    """The offset at which the transaction of each producer begins, by partition."""
    aborted: list[list[tuple[int, int, int]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """Producer id, first offset and offset of the marker, by partition."""
    markers: list[list[tuple[int, MarkerType]]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def write(self, partition: int, count: int, producer: int | None = None) -> int:
        offset = self.next_offset[partition]
        self.next_offset[partition] += count
        if producer is not None:
            self.open[partition].setdefault(producer, offset)
        return offset

    def end(self, producer: int, producer_id: int, *, is_commit: bool) -> None:
        for partition in range(PARTITIONS):
            first = self.open[partition].pop(producer, None)
            if first is not None:
                offset = self.write(partition, 1)
                self.markers[partition].append((offset, MarkerType.COMMIT if is_commit else MarkerType.ABORT))
                if not is_commit:
                    self.aborted[partition].append((producer_id, first, offset))

    def stable(self, partition: int) -> int:
        firsts = self.open[partition].values()
        return max(min(firsts), self.log_start[partition]) if firsts else self.next_offset[partition]


steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, PRODUCERS - 1), st.integers(0, PARTITIONS - 1), st.integers(1, 3)),
    st.tuples(st.just("plain"), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("end"), st.integers(0, PRODUCERS - 1), st.booleans()),
    st.tuples(st.just("init"), st.integers(0, PRODUCERS - 1)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("overdue")),
    st.tuples(st.just("remove"), st.integers(0, PARTITIONS - 1), st.integers(0, 100)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(steps, max_size=30))
def test_stable_offsets_markers_and_aborted_lists_are_the_models(history: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_follow(f"sqlite://{folder}/metadata.db", history))


async def _follow(url: str, history: list[Any]) -> None:
    plane = await start_plane(url, settings=SETTINGS)
    topic = await create_topic(plane.service, "t", PARTITIONS)
    producers = [TransactionalProducer(plane.service, f"tx-{at}", 1 + at % 2) for at in range(PRODUCERS)]
    for producer in producers:
        assert await producer.init() == 0
    model = Model()
    for name, *arguments in history:
        if name == "restart":
            await plane.service.close()
            plane = await start_plane(url, clock=plane.clock, bucket=plane.bucket, settings=SETTINGS)
            for producer in producers:
                producer.control = plane.service
        else:
            await _step(plane, topic, producers, model, name, arguments)
    for partition in range(PARTITIONS):
        await _compare(plane, topic, model, partition)
    await plane.service.close()


async def _step(
    plane: Plane,
    topic: TopicInfo,
    producers: list[TransactionalProducer],
    model: Model,
    name: str,
    arguments: list[Any],
) -> None:
    match name, arguments:
        case "write", [at, partition, count]:
            if producers[at].version == 1:
                assert await producers[at].add(topic, partition) == [0]
            assert await producers[at].write(topic, partition, count) == (0, model.write(partition, count, at))
        case "plain", [partition]:
            assert await commit(plane.service, topic, [batch()], partition) == [(0, model.write(partition, 1), False)]
        case "end", [at, is_commit]:
            producer_id = producers[at].producer_id
            if await producers[at].end(commit=is_commit) == 0:
                model.end(at, producer_id, is_commit=is_commit)
            else:
                assert not any(at in opened for opened in model.open)
        case "init", [at]:
            producer_id = producers[at].producer_id
            assert await producers[at].init() == 0
            model.end(at, producer_id, is_commit=False)
        case "overdue", []:
            plane.clock.advance(61)
            await plane.service.parts.transactions.abort_overdue()
            for producer in producers:
                known = plane.service.parts.transactions._ids[producer.name]
                if known.epoch != producer.epoch:
                    assert await producer.init() == 0
            overdue = {at for opened in model.open for at in opened}
            _end_overdue(model, producers, overdue, await _found_markers(plane, topic))
        case "remove", [partition, percent]:
            before = model.next_offset[partition] * percent // 100
            await plane.service.delete_records(DeleteRecords(topic.partition_ids[partition], before))
            model.log_start[partition] = max(model.log_start[partition], before)


async def _found_markers(plane: Plane, topic: TopicInfo) -> list[list[int]]:
    """The producers of all markers, in order, by partition."""
    return [
        [marker.producer_id for _, marker in await markers(plane.service, topic, partition)]
        for partition in range(PARTITIONS)
    ]


def _end_overdue(
    model: Model, producers: list[TransactionalProducer], overdue: set[int], found: list[list[int]]
) -> None:
    """They end together, in an order that nothing promises: it is taken from the first partition that shows it."""
    order = sorted(overdue)
    for partition, opened in enumerate(model.open):
        shown = [pid for pid in found[partition] if pid in {producers[at].producer_id for at in opened}][-len(opened) :]
        if len(opened) > 1 and len(shown) == len(opened):
            places = {pid: place for place, pid in enumerate(shown)}
            order.sort(key=lambda at: places.get(producers[at].producer_id, -1))
    for at in order:
        model.end(at, producers[at].producer_id, is_commit=False)


async def _compare(plane: Plane, topic: TopicInfo, model: Model, partition: int) -> None:
    now = await bounds(plane.service, topic, partition)
    start = model.log_start[partition]
    assert (now.log_start_offset, now.high_watermark) == (start, model.next_offset[partition])
    assert await stable_offset(plane.service, topic, partition) == model.stable(partition)
    found = [(at, marker.type) for at, marker in await markers(plane.service, topic, partition)]
    assert found == [each for each in model.markers[partition] if each[0] >= start]
    for low in range(start, now.high_watermark + 1):
        for high in {low + 1, (low + now.high_watermark) // 2, now.high_watermark}:
            expected = [
                (producer_id, first)
                for producer_id, first, marker in model.aborted[partition]
                if marker >= low and first < high
            ]
            assert await aborted(plane.service, topic, partition, low, high) == expected, (low, high)
