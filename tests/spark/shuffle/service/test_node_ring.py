"""Nodes that find each other through the store, and read for each other."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from braidlog.cache.ranges import Range, encode_range
from braidlog.cache.seal import Seal, WrongSeal
from braidlog.cache.zone_ring import READ_METHOD
from braidlog.objects.keys import shuffle_key, shuffle_nodes_prefix
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Bytes
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import BraidError, InvalidSetting
from braidlog.runtime.rpc.client import RpcClient
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings
from braidlog.spark.shuffle.buffers import Chunk
from braidlog.spark.shuffle.caches import ShuffleCache
from braidlog.spark.shuffle.debatcher import Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notification import Notification
from braidlog.spark.shuffle.service.collected_usage import current_usage, stored_usage
from braidlog.spark.shuffle.service.server import NodeParts
from braidlog.spark.shuffle.service.settings import NodeSettings, RingSettings
from braidlog.spark.shuffle.service.usage import ShuffleUsage

SECRET = "5ec2e7"
JOB = "ring"
PARTITIONS = 12
TASKS_PER_NODE = 3
ROWS_PER_TASK = 600
CACHE = ShuffleCache.of(memory="64MiB")
BATCHES = BatcherSettings(JOB, batch_bytes=16 * 1024, compression="none", interval_s=60.0)


PATIENT_S = 120.0
"""A busy machine must not make a node look dead, which would change what is counted."""


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidlog.cache.members.CONNECT_TIMEOUT_S", PATIENT_S)
    monkeypatch.setattr("braidlog.spark.shuffle.service.node_ring.READ_S_MAX", PATIENT_S)
    monkeypatch.setattr("braidlog.spark.shuffle.service.collected_usage.ANSWER_S_MAX", PATIENT_S)


def memory_store() -> MemoryStore:
    return MemoryStore(MemoryBucket(), url="memory://", clock=SystemClock())


class Link:
    """A task's link to its node, without the socket between them."""

    def __init__(self, parts: NodeParts) -> None:
        self._parts = parts

    @property
    def name(self) -> str:
        return self._parts.name

    async def share(self, runs: Mapping[str, Sequence[Chunk]], *, is_last: bool) -> list[Notification] | None:
        chunks = [(zone, chunk) for zone, found in runs.items() for chunk in found]
        return await self._parts.buffers.share("task", chunks, is_last=is_last)

    async def keep(self, key: str, data: Bytes) -> None:
        self._parts.layers.keep(key, bytes(data))


class Nodes:
    def __init__(self, store: MemoryStore, folder: Path) -> None:
        self.store = store
        self._folder = folder
        self.parts: list[NodeParts] = []

    async def start(self, zone: str, cache: ShuffleCache = CACHE) -> NodeParts:
        settings = NodeSettings("", replace(BATCHES, zone=zone), 60.0, cache, RingSettings(SECRET, "127.0.0.1"))
        number = len(self.parts)
        entropy = SeededEntropy(number)
        parts = NodeParts(settings, self.store, self._folder / str(number), clock=SystemClock(), entropy=entropy)
        await parts.start(str(self._folder / f"{number}.socket"))
        self.parts.append(parts)
        return parts

    def usage(self) -> ShuffleUsage:
        return sum((each.usage() for each in self.parts), ShuffleUsage())


@asynccontextmanager
async def nodes(folder: Path, zones: Sequence[str], cache: ShuffleCache = CACHE) -> AsyncIterator[Nodes]:
    made = Nodes(memory_store(), folder)
    try:
        for zone in zones:
            await made.start(zone, cache)
        yield made
    finally:
        for parts in made.parts:
            await parts.stop()


async def write(made: Nodes, zones: Sequence[str]) -> list[Notification]:
    """Tasks on every node, which write to all partitions."""
    told: list[Notification] = []
    zone_of_partition = [zones[partition % len(zones)] for partition in range(PARTITIONS)]
    for number, parts in enumerate(made.parts):
        for task in range(TASKS_PER_NODE):
            batcher = Batcher(
                parts.layers.bottom,
                parts.buffers._settings,
                zone_of_partition,
                clock=SystemClock(),
                entropy=SeededEntropy(100 + TASKS_PER_NODE * number + task),
                node=Link(parts),
            )
            first = ROWS_PER_TASK * (TASKS_PER_NODE * number + task)
            ids = np.arange(first, first + ROWS_PER_TASK)
            rows = pa.record_batch({"id": ids, "text": [f"{each:080d}" for each in ids.tolist()]})
            parts.buffers.join("task")
            await batcher.add(rows, (ids % PARTITIONS).astype(np.int32))
            await batcher.finish()
            parts.buffers.leave("task")
            told += batcher.take_finished()
    return told


async def read(made: Nodes, zones: Sequence[str], told: Sequence[Notification]) -> list[int]:
    """One reader for each partition, in its zone, on one of the zone's nodes in turn."""
    found: list[int] = []
    for partition in range(PARTITIONS):
        zone = zones[partition % len(zones)]
        near = [parts for parts in made.parts if parts.buffers._settings.zone == zone]
        ring = near[partition // len(zones) % len(near)].ring
        assert ring is not None
        mine = [each for each in told if each.partition == partition]
        async for rows in Debatcher(ring.layer, DebatcherSettings()).rows(mine):
            found += rows.column("id").to_pylist()
    return sorted(found)


@pytest.mark.parametrize("zones", [("a", "b"), ("a", "b", "c")])
async def test_gets_per_put_are_those_of_the_model(zones: Sequence[str], tmp_path: Path, patient: None) -> None:
    """With two nodes in each zone: one GET for each batch of another zone, none for those of the own one."""
    async with nodes(tmp_path, [*zones, *zones]) as made:
        told = await write(made, zones)
        everything = list(range(len(made.parts) * TASKS_PER_NODE * ROWS_PER_TASK))
        assert await read(made, zones, told) == everything
        usage = made.usage()
        crossing = {each.key for each in told if each.zone != zones[each.partition % len(zones)]}
        assert usage.puts == len({each.key for each in told}) > 20
        assert usage.gets == len(crossing)
        assert usage.gets_per_put == pytest.approx((len(zones) - 1) / len(zones))
        # The rest of the reads went to another node of the zone, and none around it.
        assert usage.ring_reads > 0
        assert usage.ring_around == 0
        assert await read(made, zones, told) == everything
        assert made.usage().gets == usage.gets


async def test_without_cache_on_write_every_batch_is_read_once(tmp_path: Path, patient: None) -> None:
    async with nodes(tmp_path, ["a", "a"], ShuffleCache.of(memory="64MiB", on_write=False)) as made:
        told = await write(made, ["a"])
        await read(made, ["a"], told)
        assert made.usage().gets == made.usage().puts


async def test_a_node_that_was_killed_costs_gets_and_no_rows(tmp_path: Path) -> None:
    async with nodes(tmp_path, ["a", "b", "a", "b"]) as made:
        zones = ["a", "b"]
        told = await write(made, zones)
        killed = made.parts[0]
        assert killed.ring is not None
        await killed.ring._server.close()  # it says goodbye to nobody
        lost = {each.key for each in told if killed.name in each.key}
        made.parts = made.parts[1:]
        before = made.usage().gets
        expected = list(range(4 * TASKS_PER_NODE * ROWS_PER_TASK))
        assert await read(made, zones, told) == expected
        crossing = {each.key for each in told if each.zone != zones[each.partition % 2]}
        gets = made.usage().gets - before
        assert len(crossing | lost) <= gets <= 2 * len(crossing | lost)
        made.parts = [killed, *made.parts]


async def test_a_stranger_at_the_address_of_a_node_costs_gets_and_no_rows(tmp_path: Path, patient: None) -> None:
    """A node was killed, and a node of another application listens at its address."""
    async with nodes(tmp_path, ["a", "a"]) as made:
        told = await write(made, ["a"])
        first, second = made.parts
        assert second.ring is not None
        second.ring._seal._secret = b"another"
        reader = Nodes(made.store, tmp_path)
        reader.parts = [first]
        before = first.usage().gets
        assert await read(reader, ["a"], told) == list(range(2 * TASKS_PER_NODE * ROWS_PER_TASK))
        assert first.usage().gets - before == len({each.key for each in told if second.name in each.key})
        assert SECRET not in repr(first._settings)
        second.ring._seal._secret = SECRET.encode()  # so that it hears the goodbye of the first


async def test_nodes_come_and_go_by_themselves(tmp_path: Path, patient: None) -> None:
    async with nodes(tmp_path, ["a", "a", "b"]) as made:
        first, second, other = made.parts

        def known_to(parts: NodeParts) -> set[str]:
            assert parts.ring is not None
            return set(parts.ring.nodes)

        # The second one called the first. Nodes of other zones are seen in the store.
        assert known_to(first) >= {first.name, second.name}
        assert known_to(other) == {first.name, second.name, other.name}
        assert first.facts().zone_names == second.facts().zone_names
        assert first.facts().cached_bytes_max == 2 * CACHE.memory_bytes
        made.parts.remove(second)
        await second.stop()
        assert second.name not in known_to(first)
        listed = await made.store.list(shuffle_nodes_prefix(JOB))
        assert len(listed.objects) == 2


async def test_what_nodes_used_is_known_while_they_run_and_afterwards(tmp_path: Path, patient: None) -> None:
    async with nodes(tmp_path, ["a", "b"]) as made:
        told = await write(made, ["a", "b"])
        await read(made, ["a", "b"], told)
        expected = made.usage()
        how = {"clock": SystemClock(), "entropy": SeededEntropy(1)}
        assert await current_usage(made.store, JOB, SECRET, **how) == expected  # type: ignore[arg-type]
        ended = made.parts.pop()
        await ended.stop()
        assert await current_usage(made.store, JOB, SECRET, **how) == expected  # type: ignore[arg-type]
        # With the wrong secret, nodes do not answer, and the store's last word counts.
        assert (await current_usage(made.store, JOB, "other", **how)).puts < expected.puts  # type: ignore[arg-type]
    assert await stored_usage(made.store, JOB) == expected


async def test_a_node_answers_nobody_who_does_not_know_the_secret(tmp_path: Path, patient: None) -> None:
    async with nodes(tmp_path, ["a"]) as made:
        [parts] = made.parts
        assert parts.ring is not None
        batch, stranger = shuffle_key(JOB, "inc", 0), shuffle_key("other", "inc", 0)
        await made.store.put(batch, bytes(100))
        await made.store.put(stranger, bytes(100))
        client = RpcClient(parts.ring._own.address, SystemClock(), SeededEntropy(2))

        async def ask(asked: Range, secret: str = SECRET) -> bytes:
            return await client.call(READ_METHOD, Seal(secret).close(READ_METHOD, encode_range(asked)), 60.0)

        assert await ask(Range(batch, 100, 10, 20)) == bytes(10)
        with pytest.raises(WrongSeal):
            await ask(Range(batch, 100, 10, 20), "wrong")
        for wrong in (
            Range(stranger, 100, 10, 20),
            Range("cluster.json", 100, 10, 20),
            Range(batch, 1 << 40, 0, 1 << 40),
            Range(batch, 100, 20, 10),
        ):
            with pytest.raises(InvalidSetting):
                await ask(wrong)
        for method in (READ_METHOD, "ring_hello", "ring_bye", "ring_usage"):
            for body in (b"", b"\x00" * 40, Seal(SECRET).close("another", b"")):
                with pytest.raises(BraidError):
                    await asyncio.wait_for(client.call(method, body, 60.0), 60.0)
        with pytest.raises(InvalidSetting):
            await client.call("ring_hello", Seal(SECRET).close("ring_hello", b"\xc1"), 60.0)
        await client.close()
