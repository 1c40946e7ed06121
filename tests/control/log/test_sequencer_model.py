"""The sequencer against a model that is too simple to be wrong."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.driver import batch, create_topic, make_object, new_producer, outcomes, start_plane

from braidlog.control.interface import BoundsRequest, FindExtents
from braidlog.control.settings import ControlSettings
from braidlog.objects.layout import BatchEntry

PARTITIONS = 3
WRAP = 2**31


@dataclass
class Model:
    """Every batch ever accepted is remembered; only the last five count."""

    next_offset: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    written: dict[tuple[int, int], list[tuple[int, int, int, int]]] = field(default_factory=dict)
    """Epoch, first sequence, last sequence and offset of each batch, by (producer, partition)."""

    def expect(self, partition: int, entry: BatchEntry, known: bool) -> tuple[int, int, bool]:
        offset = self.next_offset[partition]
        if entry.producer_id < 0:
            self.next_offset[partition] += entry.offset_count
            return 0, offset, False
        history = self.written.setdefault((entry.producer_id, partition), [])
        first, last = entry.base_sequence, (entry.base_sequence + entry.offset_count - 1) % WRAP
        if history and entry.producer_epoch < history[-1][0]:
            return 47, -1, False
        if not history or entry.producer_epoch > history[-1][0]:
            if first != 0 and (history or known):
                return 45, -1, False
        elif first != (history[-1][2] + 1) % WRAP:
            recent = [each for each in history if each[0] == entry.producer_epoch][-5:]
            for _, old_first, old_last, old_offset in recent:
                if (old_first, old_last) == (first, last):
                    return 0, old_offset, True
            behind = (recent[0][1] - first) % WRAP
            return (46 if 0 < behind < WRAP // 2 else 45), -1, False
        history.append((entry.producer_epoch, first, last, offset))
        self.next_offset[partition] += entry.offset_count
        return 0, offset, False


sequences = st.sampled_from([*range(8), WRAP - 4, WRAP - 3, WRAP - 2, WRAP - 1])
entries = st.one_of(
    st.builds(batch, st.integers(1, 3)),
    st.builds(batch, st.integers(1, 3), st.integers(1, 4), st.integers(0, 2), sequences),
)
objects = st.dictionaries(st.integers(0, PARTITIONS - 1), st.lists(entries, min_size=1, max_size=4), min_size=1)
histories = st.lists(st.one_of(objects, st.integers(0, 20)), max_size=25)


@settings(max_examples=60, deadline=None)
@given(histories)
def test_verdicts_and_offsets_are_the_models(history: list[Any]) -> None:
    asyncio.run(_follow(history))


async def _follow(history: list[Any]) -> None:
    plane = await start_plane(settings=ControlSettings(recent_extents_max=3, producer_states_max=2))
    try:
        topic = await create_topic(plane.service, "t", PARTITIONS)
        # Two producers that were handed out, and two that nobody knows: for those, the first sequence may be any.
        handed_out = {await new_producer(plane.service) for _ in range(2)}
        assert handed_out == {1, 2}
        model = Model()
        committed = []
        for step in history:
            if isinstance(step, dict):
                request = make_object([(topic.topic_id, partition, step[partition]) for partition in sorted(step)])
                expected = [
                    model.expect(partition, entry, entry.producer_id in handed_out)
                    for partition in sorted(step)
                    for entry in step[partition]
                ]
                verdict = await plane.service.commit_object(request)
                assert outcomes(verdict) == expected
                committed.append((request, verdict))
            elif committed:
                request, verdict = committed[step % len(committed)]
                assert await plane.service.commit_object(request) == verdict
        bounds = await plane.service.current_bounds(BoundsRequest(topic.partition_ids))
        assert [bound.high_watermark for bound in bounds.bounds] == model.next_offset
        for index, partition_id in enumerate(topic.partition_ids):
            found = await plane.service.find_extents(FindExtents(partition_id, 0, 10**9))
            end = 0
            for extent in found.extents:
                assert extent.base_offset == end
                end = extent.end_offset
            assert end == model.next_offset[index]
            assert found.bounds.size_bytes == sum(extent.length for extent in found.extents)
    finally:
        await plane.service.close()
