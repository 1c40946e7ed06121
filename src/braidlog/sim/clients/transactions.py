"""Simulated transactional producers, some of which crash or return as zombies."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.records.batch import TRANSACTIONAL_BIT, BatchProducer
from braidlog.records.record import Record, encode_batch
from braidlog.sim.clients.producers import POSSIBLY_WRITTEN
from braidlog.sim.clients.session import ClientSession
from braidlog.sim.clients.wire_client import Disconnected, request_types
from braidlog.sim.history import FetchOffset, Send, Transaction
from braidlog.sim.virtual.clock import EPOCH_MS

INIT_PRODUCER_ID, PRODUCE, ADD_PARTITIONS, ADD_OFFSETS, END, TXN_OFFSETS, OFFSET_FETCH = 22, 0, 24, 25, 26, 28, 9
VERSIONS = {
    1: {INIT_PRODUCER_ID: 4, PRODUCE: 9, ADD_PARTITIONS: 3, ADD_OFFSETS: 3, END: 4, TXN_OFFSETS: 3, OFFSET_FETCH: 7},
    2: {INIT_PRODUCER_ID: 5, PRODUCE: 12, END: 5, TXN_OFFSETS: 5, OFFSET_FETCH: 7},
}
"""API versions that clients use, by version of transactions."""

TIMEOUT_S = 20.0
RECORDS_PER_BATCH_MAX = 3
BATCHES_MAX = 4
TRIES_MAX = 60
CRASH_ONE_IN = 8
ABORT_ONE_IN = 3
ZOMBIE_ONE_IN = 2
IMPATIENT_ONE_IN = 5


class Crashed(Exception):
    """The producer's process crashes here."""


class Refused(Exception):
    """The answer is an error that no retry changes."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(eq=False)
class _Ongoing:
    """One transaction, as far as its producer knows."""

    number: int
    begun_s: float
    values: list[tuple[str, int, str]] = field(default_factory=list)
    """Topic, partition and value of all records sent, acknowledged or not."""
    offset: int = -1
    """The offset that it commits for the group; -1: none."""
    commit_invoked_s: float | None = None


class TransactionalProducer:
    """Runs one transaction after the other under one transactional id."""

    def __init__(
        self,
        session: ClientSession,
        transactional_id: str,
        targets: list[tuple[str, int]],
        *,
        version: int,
        group: str,
        pause_s: float,
    ) -> None:
        self._session = session
        self._transactional_id = transactional_id
        self._targets = targets
        self._version = version
        self._group = group
        """Its offset for the first target counts the committed transactions."""
        self._pause_s = pause_s
        self._producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}
        self._orders: dict[tuple[str, int], int] = {}
        self._next_number = 0
        self._zombie: tuple[int, int] | None = None
        """The identity of a producer that has crashed."""
        self._must_renew = False
        """Whether to take a new epoch. Under version 1, a repeated request may arrive during the next transaction, and
        only the epoch shows that it belongs to the one before. Version 2 gives a new epoch with every end."""
        self.stopping = False

    async def run(self) -> None:
        while not self.stopping:
            try:
                await self._init()
                while not self.stopping and not self._must_renew:
                    await self._transact()
                    await self._check_offset()
                    await self._session.pause(self._pause_s)
            except (Disconnected, TimeoutError, Crashed, Refused):
                await self._session.pause()
        self._session.close()

    # ── one transaction ──

    async def _transact(self) -> None:
        entropy = self._session.entropy
        ongoing = _Ongoing(self._next_number, self._session.now_s)
        self._next_number += 1
        crash_at = entropy.below(6) if entropy.below(CRASH_ONE_IN) == 0 else -1
        outcome = "aborted"
        try:
            await self._write(ongoing, crash_at)
            if entropy.below(2):
                await self._commit_offset(ongoing)
            self._maybe_crash(crash_at, 4)
            if entropy.below(ABORT_ONE_IN) == 0:
                await self._end(commit=False)
            else:
                ongoing.commit_invoked_s = self._session.now_s
                outcome = "unknown"
                await self._end(commit=True)
                outcome = "committed"
        except Crashed:
            self._zombie = self._producer if entropy.below(ZOMBIE_ONE_IN) == 0 else None
            raise
        except Refused:
            if ongoing.commit_invoked_s is None:
                await self._give_up()
            raise
        finally:
            self._record(ongoing, outcome)

    async def _write(self, ongoing: _Ongoing, crash_at: int) -> None:
        entropy = self._session.entropy
        for at in range(1 + entropy.below(BATCHES_MAX)):
            self._maybe_crash(crash_at, at)
            topic, partition = self._targets[entropy.below(len(self._targets))]
            if self._version < 2:
                await self._add_partition(topic, partition)
            values = [
                f"{self._session.name}/{ongoing.number}/{at}.{number}"
                for number in range(1 + entropy.below(RECORDS_PER_BATCH_MAX))
            ]
            ongoing.values += [(topic, partition, value) for value in values]
            await self._produce(topic, partition, values)

    def _maybe_crash(self, crash_at: int, step: int) -> None:
        if crash_at == step:
            raise Crashed

    async def _give_up(self) -> None:
        """Abort a failed transaction, with one attempt.

        If that fails too, the next producer aborts it.
        """
        try:
            await self._end(commit=False, tries=1)
        except (Refused, Disconnected, TimeoutError):
            pass

    def _record(self, ongoing: _Ongoing, outcome: Any) -> None:
        self._session.history.record(
            Transaction(
                client=self._session.name,
                invoke_s=ongoing.begun_s,
                complete_s=self._session.now_s,
                number=ongoing.number,
                values=ongoing.values,
                outcome=outcome,
                commit_invoked_s=ongoing.commit_invoked_s,
                group=self._group if ongoing.offset >= 0 else "",
                offset=ongoing.offset,
            )
        )

    # ── requests ──

    async def _call(self, api_key: int, request: Any) -> Any:
        connection = await self._session.any_connection()
        return await connection.call(api_key, VERSIONS[self._version][api_key], request)

    async def _until_answered(self, api_key: int, request: Any, code_of: Any, tries: int = TRIES_MAX) -> Any:
        """Repeat a request until there is a final answer."""
        for attempt in range(tries):
            self._must_renew |= attempt > 0 and self._version < 2
            try:
                answer = await self._call(api_key, request)
            except (Disconnected, TimeoutError):
                await self._session.pause()
                continue
            code: ErrorCode = code_of(answer)
            if code == ErrorCode.none:
                return answer
            if not code.retriable:
                raise Refused(code)
            await self._session.pause()
        raise Disconnected("no answer that counts")

    def _types(self, api_key: int) -> Any:
        return request_types(api_key, VERSIONS[self._version][api_key])

    async def _init(self) -> None:
        answer = await self._until_answered(
            INIT_PRODUCER_ID,
            self._types(INIT_PRODUCER_ID).InitProducerIdRequest(
                transactional_id=self._transactional_id,
                transaction_timeout=i32Timedelta.parse(timedelta(seconds=TIMEOUT_S)),
                producer_id=-1,
                producer_epoch=-1,
            ),
            lambda answer: answer.error_code,
        )
        self._take_identity(answer.producer_id, answer.producer_epoch)
        self._must_renew = False
        if self._zombie is not None:
            zombie, self._zombie = self._zombie, None
            await self._act_as_zombie(zombie)

    async def _act_as_zombie(self, identity: tuple[int, int]) -> None:
        """Let the crashed producer try to commit the transaction of the new one."""
        ongoing = _Ongoing(self._next_number, self._session.now_s)
        self._next_number += 1
        try:
            await self._write(ongoing, -1)
            try:
                await self._until_answered(END, self._end_request(identity, True), lambda answer: answer.error_code, 1)
            except (Refused, Disconnected, TimeoutError):
                pass
            await self._session.pause(2.0)
            await self._end(commit=False)
        finally:
            self._record(ongoing, "aborted")

    def _take_identity(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self._producer:
            self._producer = (producer_id, epoch)
            self._sequences.clear()

    async def _add_partition(self, topic: str, partition: int) -> None:
        types = self._types(ADD_PARTITIONS)
        await self._until_answered(
            ADD_PARTITIONS,
            types.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._transactional_id,
                v3_and_below_producer_id=self._producer[0],
                v3_and_below_producer_epoch=self._producer[1],
                v3_and_below_topics=(types.AddPartitionsToTxnTopic(name=topic, partitions=(partition,)),),
            ),
            lambda answer: answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code,
        )

    async def _produce(self, topic: str, partition: int, values: list[str]) -> None:
        """Send one batch until its outcome is known.

        Without one, its sequence numbers stay open.
        """
        session = self._session
        place = (topic, partition)
        sequence = self._sequences.get(place, 0)
        order = self._orders.get(place, 0)
        self._orders[place] = order + len(values)
        request = self._produce_request(topic, partition, sequence, values)
        invoke_s = session.now_s
        may_be_written, tries, code, offset = False, 0, ErrorCode.none, -1
        try:
            # Some producers give up while the batch is still in flight.
            tries_max, timeout_s = (1, 0.3) if session.entropy.below(IMPATIENT_ONE_IN) == 0 else (6, 10.0)
            while tries < tries_max:
                tries += 1
                try:
                    connection = await session.leader(topic, partition)
                    answer = await connection.call(
                        PRODUCE, VERSIONS[self._version][PRODUCE], request, timeout_s=timeout_s
                    )
                except (Disconnected, TimeoutError):
                    may_be_written = True
                    session.forget(topic, partition)
                    await session.pause()
                    continue
                found = answer.responses[0].partition_responses[0]
                code = found.error_code
                may_be_written |= code in POSSIBLY_WRITTEN
                if code == ErrorCode.none:
                    offset = found.base_offset
                    self._sequences[place] = sequence + len(values)
                    return
                if not code.retriable:
                    raise Refused(code)
                await session.pause()
            raise Refused(ErrorCode.request_timed_out)
        finally:
            outcome: Any = "ok" if offset >= 0 else "unknown" if may_be_written else "failed"
            for at, value in enumerate(values):
                session.history.record(
                    Send(
                        client=session.name,
                        invoke_s=invoke_s,
                        complete_s=session.now_s,
                        topic=topic,
                        partition=partition,
                        value=value,
                        order=order + at,
                        producer=f"{self._producer[0]}/{self._producer[1]}",
                        retried=tries > 1,
                        outcome=outcome,
                        offset=offset + at if offset >= 0 else -1,
                        error="" if outcome == "ok" else code.name,
                    )
                )

    def _produce_request(self, topic: str, partition: int, sequence: int, values: list[str]) -> Any:
        types = self._types(PRODUCE)
        now_ms = EPOCH_MS + int(self._session.now_s * 1000)
        records = encode_batch(
            [Record(at, now_ms, None, value.encode(), ()) for at, value in enumerate(values)],
            producer=BatchProducer(*self._producer, sequence),
            flags=TRANSACTIONAL_BIT,
        )
        data = types.PartitionProduceData(index=partition, records=records)
        return types.ProduceRequest(
            transactional_id=self._transactional_id,
            acks=-1,
            timeout=i32Timedelta.parse(timedelta(seconds=30)),
            topic_data=(types.TopicProduceData(name=topic, partition_data=(data,)),),
        )

    async def _commit_offset(self, ongoing: _Ongoing) -> None:
        topic, partition = self._targets[0]
        owner = {
            "transactional_id": self._transactional_id,
            "producer_id": self._producer[0],
            "producer_epoch": self._producer[1],
        }
        ongoing.offset = ongoing.number
        if self._version < 2:
            request = self._types(ADD_OFFSETS).AddOffsetsToTxnRequest(**owner, group_id=self._group)
            await self._until_answered(ADD_OFFSETS, request, lambda answer: answer.error_code)
        types = self._types(TXN_OFFSETS)
        offset = types.TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=ongoing.offset, committed_leader_epoch=-1, committed_metadata=""
        )
        await self._until_answered(
            TXN_OFFSETS,
            types.TxnOffsetCommitRequest(
                **owner,
                group_id=self._group,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=(types.TxnOffsetCommitRequestTopic(name=topic, partitions=(offset,)),),
            ),
            lambda answer: answer.topics[0].partitions[0].error_code,
        )

    def _end_request(self, identity: tuple[int, int], commit: bool) -> Any:
        return self._types(END).EndTxnRequest(
            transactional_id=self._transactional_id,
            producer_id=identity[0],
            producer_epoch=identity[1],
            committed=commit,
        )

    async def _end(self, *, commit: bool, tries: int = TRIES_MAX) -> None:
        request = self._end_request(self._producer, commit)
        answer = await self._until_answered(END, request, lambda answer: answer.error_code, tries)
        if self._version >= 2:
            self._take_identity(answer.producer_id, answer.producer_epoch)

    async def _check_offset(self) -> None:
        """Read and record the group's offset."""
        topic, partition = self._targets[0]
        types = self._types(OFFSET_FETCH)
        invoke_s = self._session.now_s
        request = types.OffsetFetchRequest(
            group_id=self._group,
            topics=(types.OffsetFetchRequestTopic(name=topic, partition_indexes=(partition,)),),
            require_stable=False,
        )
        answer = await self._call(OFFSET_FETCH, request)
        found = answer.topics[0].partitions[0] if answer.error_code == ErrorCode.none else None
        if found is not None and found.error_code == ErrorCode.none:
            self._session.history.record(
                FetchOffset(
                    client=self._session.name,
                    invoke_s=invoke_s,
                    complete_s=self._session.now_s,
                    group=self._group,
                    topic=topic,
                    partition=partition,
                    offset=found.committed_offset,
                )
            )
