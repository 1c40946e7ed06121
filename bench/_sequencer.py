"""The sequencer's load: committers that hand in ready-made footers, one after the other, over the real RPC."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

from braidlog.control.interface import (
    CommitObject,
    ControlPlane,
    CreateTopics,
    InitProducerId,
    NewTopic,
    RegisterAgent,
)
from braidlog.objects.format import encode_footer
from braidlog.objects.keys import data_key
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer

TOPIC_COUNT = 10
PARTITIONS_PER_TOPIC = 50
EXTENTS_PER_OBJECT = 50
RECORDS_PER_BATCH = 10
BATCH_BYTES = 10_240
CALL_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Committed:
    extents_per_s: float
    latencies_ms: list[float]


class SequencerLoad:
    """Each committer is an idempotent producer that writes to all partitions in turn, so that every batch is checked
    against what it wrote before."""

    def __init__(self, control: ControlPlane, *, committers: int) -> None:
        self._control = control
        self._committers = committers
        self._incarnation = "bench"
        self._write_epoch = 0
        self._topic_ids: list[bytes] = []
        self._producers: list[tuple[int, int]] = []
        self._commits = [0] * committers
        self._number = 0

    async def prepare(self) -> None:
        control = self._control
        registered = await control.register_agent(RegisterAgent(self._incarnation, "127.0.0.1", 1, ""))
        self._write_epoch = registered.write_epoch
        topics = [NewTopic(f"topic-{number}", PARTITIONS_PER_TOPIC) for number in range(TOPIC_COUNT)]
        created = await control.create_topics(CreateTopics(topics), timeout_s=CALL_TIMEOUT_S)
        for outcome in created.outcomes:
            if outcome.topic is None:
                raise RuntimeError(f"{outcome.name}: {outcome.error_message}")
            self._topic_ids.append(outcome.topic.topic_id)
        for _ in range(self._committers):
            identity = await control.init_producer_id(InitProducerId(None, 60_000), timeout_s=CALL_TIMEOUT_S)
            self._producers.append((identity.producer_id, identity.producer_epoch))

    def _next_object(self, committer: int) -> CommitObject:
        producer_id, producer_epoch = self._producers[committer]
        turn = self._commits[committer]
        self._commits[committer] += 1
        round_number, place = divmod(turn, TOPIC_COUNT)
        topic_id = self._topic_ids[(place + committer) % TOPIC_COUNT]
        now_ms = time.time_ns() // 1_000_000
        extents = [
            ExtentEntry(
                topic_id,
                partition,
                partition * BATCH_BYTES,
                BATCH_BYTES,
                RECORDS_PER_BATCH,
                now_ms,
                now_ms,
                KAFKA_BATCHES,
                [
                    BatchEntry(
                        BATCH_BYTES,
                        RECORDS_PER_BATCH,
                        0,
                        now_ms,
                        producer_id,
                        producer_epoch,
                        round_number * RECORDS_PER_BATCH,
                    )
                ],
            )
            for partition in range(EXTENTS_PER_OBJECT)
        ]
        self._number += 1
        footer = encode_footer(
            Footer(self._number.to_bytes(16, "big"), self._write_epoch, self._incarnation, now_ms, "", extents)
        )
        key = data_key(self._write_epoch, self._incarnation, self._number)
        return CommitObject(key, EXTENTS_PER_OBJECT * BATCH_BYTES + len(footer) + 36, footer)

    async def run(self, object_count: int) -> Committed:
        """Commit `object_count` objects, shared evenly among the committers."""
        each = object_count // self._committers
        objects = [[self._next_object(committer) for _ in range(each)] for committer in range(self._committers)]
        latencies_ms: list[float] = []
        started_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for own in objects:
                tasks.create_task(self._commit_all(iter(own), latencies_ms))
        elapsed_s = time.perf_counter() - started_s
        return Committed(each * self._committers * EXTENTS_PER_OBJECT / elapsed_s, latencies_ms)

    async def _commit_all(self, objects: Iterator[CommitObject], latencies_ms: list[float]) -> None:
        for request in objects:
            started_s = time.perf_counter()
            verdict = await self._control.commit_object(request, timeout_s=CALL_TIMEOUT_S)
            latencies_ms.append((time.perf_counter() - started_s) * 1000)
            if verdict.error_code:
                raise RuntimeError(f"{request.key} was refused: {verdict.error_message}")
            for extent in verdict.extents:
                if extent.verdicts[0].error_code:
                    raise RuntimeError(f"a batch of {request.key} was refused: {extent.verdicts[0]}")
