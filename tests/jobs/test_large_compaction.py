"""Compaction of many records, held against what numpy says must be left; a consumer reads meanwhile."""

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
import pytest
from tests.control.driver import START_MS, Plane, create_topic
from tests.jobs.driver import SETTINGS, Read, read_all, start, worker
from tests.jobs.test_backlog import Consumer

from braidlog.control.interface import CommitObject, TopicInfo
from braidlog.control.jobs.settings import JobSettings
from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.keys import data_key
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.records.arrow import encode_batches
from braidlog.runtime.entropy import SeededEntropy

RECORDS_PER_EXTENT = 25_000


class Load:
    """Random keys over partitions, and what must be left of each in the end."""

    def __init__(self, *, records: int, keys: int, partitions: int) -> None:
        self._random = np.random.default_rng(7)
        self.partitions = partitions
        self._keys_per_partition = keys // partitions
        self._rounds = records // partitions // RECORDS_PER_EXTENT
        self.newest = [dict[int, tuple[int, bool]]() for _ in range(partitions)]
        """The offset, and whether it is a tombstone, by partition and key."""

    async def write(self, plane: Plane, topic: TopicInfo) -> int:
        entropy = SeededEntropy("load")
        for number in range(self._rounds):
            pieces: list[bytes] = []
            extents: list[ExtentEntry] = []
            position = 0
            for partition in range(self.partitions):
                keys = self._random.integers(self._keys_per_partition, size=RECORDS_PER_EXTENT)
                is_null = self._random.random(RECORDS_PER_EXTENT) < 0.1
                self._note(partition, number * RECORDS_PER_EXTENT, keys, is_null)
                offsets = np.arange(number * RECORDS_PER_EXTENT, (number + 1) * RECORDS_PER_EXTENT)
                table = pa.table(
                    {
                        "key": pa.array(keys.astype(str)).cast(pa.binary()),
                        "value": pa.array(offsets.astype(str), mask=is_null).cast(pa.binary()),
                    }
                )
                encoded = encode_batches(table, batch_bytes_max=100_000, timestamp_ms_default=START_MS)
                extents.append(
                    ExtentEntry(
                        topic.topic_id,
                        partition,
                        position,
                        len(encoded.data),
                        RECORDS_PER_EXTENT,
                        START_MS,
                        START_MS,
                        KAFKA_BATCHES,
                        [BatchEntry(*batch) for batch in encoded.batches],
                    )
                )
                pieces.append(bytes(encoded.data))
                position += len(encoded.data)
            footer = Footer(entropy.token(16), plane.service.parts.epochs.current, "load", START_MS, "", extents)
            tail = encode_footer(footer)
            whole = b"".join([*pieces, tail, encode_trailer(tail, footer.nonce)])
            key = data_key(footer.write_epoch, "load", number)
            await plane.store.put(key, whole)
            verdict = await plane.service.commit_object(CommitObject(key, len(whole), tail))
            assert verdict.error_code == 0
        return self._rounds * RECORDS_PER_EXTENT

    def _note(self, partition: int, base_offset: int, keys: "np.typing.NDArray[np.int64]", is_null: object) -> None:
        last = {int(key): at for at, key in enumerate(keys.tolist())}
        nulls = np.asarray(is_null)
        self.newest[partition].update({key: (base_offset + at, bool(nulls[at])) for key, at in last.items()})

    def expected(self, partition: int) -> list[Read]:
        return [
            Read(offset, b"%d" % key, None if is_null else b"%d" % offset, START_MS)
            for key, (offset, is_null) in sorted(self.newest[partition].items(), key=lambda item: item[1])
        ]


async def run(records: int, keys: int, partitions: int) -> None:
    plane = await start(
        settings=SETTINGS.__class__(jobs=JobSettings(lease_s=3600.0, compaction_bytes_min=0, compaction_interval_s=0.0))
    )
    topic = await create_topic(plane.service, "state", partitions, cleanup_policy="compact")
    load = Load(records=records, keys=keys, partitions=partitions)
    end_offset = await load.write(plane, topic)
    consumers = [Consumer(plane, topic, partition) for partition in range(partitions)]
    assert len(await plane.service.parts.planner.plan_once()) == partitions
    some = worker(plane)
    done = 0
    while await some.run_once():
        done += 1
        for consumer in consumers[:2]:
            await consumer.poll(64 << 10)  # somebody reads while partitions are compacted, this one too
    assert (done, some.statistics().done) == (partitions, partitions)
    for partition in range(partitions):
        assert await read_all(plane, topic, partition) == load.expected(partition)
    for partition, consumer in enumerate(consumers[:2]):
        await consumer.read_all()
        offsets = [read.offset for read in consumer.seen]
        assert offsets == sorted(set(offsets))
        state = {read.key: read.value for read in consumer.seen}
        assert state == {read.key: read.value for read in load.expected(partition)}
        assert max(offsets) < end_offset
    await plane.service.close()


@pytest.mark.timeout(120)
async def test_a_hundred_thousand_records() -> None:
    await run(records=100_000, keys=5_000, partitions=4)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_ten_million_records() -> None:
    await run(records=10_000_000, keys=100_000, partitions=20)
