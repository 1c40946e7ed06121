"""One simulated run: a cluster, clients, failures, and the history of it all.

A scenario is a coroutine that is given a `World` and says what happens in it. `simulate` runs it under one seed; the
same seed gives the same history, byte for byte.
"""

import asyncio
import gc
import logging
import tempfile
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import structlog
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.objects.format import decode_object_tail
from braidlog.objects.keys import JOURNAL_PREFIX, parse_journal_key
from braidlog.runtime.entropy import Entropy, SeededEntropy
from braidlog.sim.cluster import ClusterPlan, SimCluster
from braidlog.sim.committed_reads import CommittedReader, read_committed_whole
from braidlog.sim.consumer_members import ConsumerMember
from braidlog.sim.consumers import GroupMember, SimReader, fetch, list_offset
from braidlog.sim.history import ALL_IS_WELL, Compacted, Event, FinalRead, History, Journaled
from braidlog.sim.loop import VirtualLoop
from braidlog.sim.producers import SimProducer
from braidlog.sim.session import ClientSession
from braidlog.sim.transactions import TransactionalProducer
from braidlog.sim.wire_client import Disconnected, request_types

CREATE_TOPICS, CREATE_TOPICS_VERSION = 19, 7
DELETE_RECORDS, DELETE_RECORDS_VERSION = 21, 2
REST_S = 400.0
"""So much longer than the simulated cluster's graces that the sweeper has seen everything at least once."""
DRAIN_S_MAX = 600.0
"""How long it may take until everything that is in journals is in the logs."""
SETTLE_S_MAX = 600.0
"""How long clients may take to come to rest once everything is well again."""

Scenario = Callable[["World"], Awaitable[None]]
AnyClient = SimProducer | SimReader | GroupMember | TransactionalProducer | CommittedReader
Client = TypeVar("Client", bound=AnyClient)


class World:
    """What a scenario can do. Everything is seeded, and everything that clients see is recorded."""

    def __init__(self, loop: VirtualLoop, entropy: Entropy, folder: Path, plan: ClusterPlan) -> None:
        self.loop = loop
        self.entropy = entropy
        self.history = History()
        self.cluster = SimCluster(loop, entropy, folder, plan)
        self.topics: dict[str, int] = {}
        """Partition counts by name."""
        self.transactional: dict[str, None] = {}
        """Topics that transactions write to."""
        self.journaled: dict[str, None] = {}
        """Topics whose records may be acknowledged before they are sequenced."""
        self.gives_up_gaps = False
        """Whether too little may wait for what comes before it to keep order. To be said before topics are created."""
        self.strikes: frozenset[int] | None = None
        """Which of the nemesis' strikes fall; None: all of them."""
        self.strikes_laid_out = 0
        self.faults = 0
        self.expects_tidy_store = False
        """Whether the store must hold, after some rest, all objects that are in use and no others."""
        self._clients: list[AnyClient] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._sessions = 0

    def note(self, what: str) -> None:
        """Say in the history that something was done to the system."""
        now_s = self.loop.time()
        self.history.record(Event(client="nemesis", invoke_s=now_s, complete_s=now_s, what=what))

    def session(self, name: str) -> ClientSession:
        self._sessions += 1
        full_name = f"{name}-{self._sessions}"
        return ClientSession(full_name, self.cluster.addresses, self.history, self.entropy.fork(full_name))

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # ── clients ──

    async def create_topic(self, name: str, partition_count: int, **configs: str) -> None:
        types = request_types(CREATE_TOPICS, CREATE_TOPICS_VERSION)
        session = self.session("admin")

        async def create() -> None:
            connection = await session.any_connection()
            answer = await connection.call(
                CREATE_TOPICS,
                CREATE_TOPICS_VERSION,
                types.CreateTopicsRequest(
                    topics=(
                        types.CreatableTopic(
                            name=name,
                            num_partitions=partition_count,
                            replication_factor=-1,
                            assignments=(),
                            configs=tuple(
                                types.CreatableTopicConfig(name=key.replace("_", "."), value=value)
                                for key, value in configs.items()
                            ),
                        ),
                    ),
                    timeout=i32Timedelta.parse(timedelta(seconds=10)),
                    validate_only=False,
                ),
            )
            code = answer.topics[0].error_code
            if code not in {ErrorCode.none, ErrorCode.topic_already_exists}:
                raise Disconnected(f"create topic: {code.name}")

        await session.retry(create)
        session.close()
        self.topics[name] = partition_count
        if configs.get("braidlog_topic_type") == "lightning" or self.cluster.plan.ripcord != "off":
            self.journaled[name] = None
            now_s, keeps_order = self.loop.time(), not self.gives_up_gaps
            self.history.record(
                Journaled(client="admin", invoke_s=now_s, complete_s=now_s, topic=name, keeps_order=keeps_order)
            )
        if "compact" in configs.get("cleanup_policy", ""):
            retention_s = int(configs.get("delete_retention_ms", "86400000")) / 1000
            now_s = self.loop.time()
            self.history.record(
                Compacted(client="admin", invoke_s=now_s, complete_s=now_s, topic=name, delete_retention_s=retention_s)
            )

    async def delete_records(self, topic: str, partition: int, before_offset: int) -> None:
        """Ask for it once; whether it happened shows in the log start."""
        types = request_types(DELETE_RECORDS, DELETE_RECORDS_VERSION)
        session = self.session("admin")
        try:
            connection = await session.any_connection()
            await connection.call(
                DELETE_RECORDS,
                DELETE_RECORDS_VERSION,
                types.DeleteRecordsRequest(
                    topics=(
                        types.DeleteRecordsTopic(
                            name=topic,
                            partitions=(types.DeleteRecordsPartition(partition_index=partition, offset=before_offset),),
                        ),
                    ),
                    timeout=i32Timedelta.parse(timedelta(seconds=10)),
                ),
            )
        except Disconnected:
            pass
        session.close()

    def targets(self, topic: str) -> list[tuple[str, int]]:
        return [(topic, partition) for partition in range(self.topics[topic])]

    def producer(self, targets: list[tuple[str, int]], **options: Any) -> SimProducer:
        settings = {
            "idempotent": True,
            "retries": True,
            "in_flight_max": 5,
            "pause_s": 0.3,
            "journaled": self.journaled,
            **options,
        }
        kind = "idempotent" if settings["idempotent"] else "plain"
        return self._start(SimProducer(self.session(kind), targets, **settings))

    def reader(self, targets: list[tuple[str, int]]) -> SimReader:
        return self._start(SimReader(self.session("reader"), targets))

    def transactional_producer(self, targets: list[tuple[str, int]], **options: Any) -> TransactionalProducer:
        """Also makes a note that committed data of these topics is read in the end."""
        self.transactional.update(dict.fromkeys(topic for topic, _ in targets))
        session = self.session("transactional")
        settings = {"version": 1, "group": f"group-of-{session.name}", "pause_s": 0.5, **options}
        return self._start(TransactionalProducer(session, f"id-of-{session.name}", targets, **settings))

    def committed_reader(self, targets: list[tuple[str, int]]) -> CommittedReader:
        return self._start(CommittedReader(self.session("committed-reader"), targets))

    def member(self, group: str, topic: str) -> GroupMember:
        return self._start(GroupMember(self.session("member"), group, topic, self.topics[topic]))

    def consumer_member(self, group: str, topic: str) -> ConsumerMember:
        """Of a group whose partitions the coordinator assigns."""
        return self._start(ConsumerMember(self.session("consumer"), group, topic, self.topics[topic]))

    def _start(self, client: Client) -> Client:
        self._clients.append(client)
        self._tasks.append(self.loop.create_task(client.run()))
        return client

    # ── the end ──

    async def finish(self) -> None:
        """Heal everything, let the clients come to rest, and read every log whole."""
        self.cluster.settle()
        self.note(ALL_IS_WELL)
        for client in self._clients:
            if isinstance(client, ConsumerMember):
                client.is_calm = True
        await self.sleep(15.0)
        for client in self._clients:
            client.stopping = True
        _, pending = await asyncio.wait(self._tasks, timeout=SETTLE_S_MAX) if self._tasks else (None, None)
        if pending:
            raise Stuck(f"{len(pending)} of {len(self._tasks)} clients did not come to rest in {SETTLE_S_MAX} s")
        for task in self._tasks:
            task.result()
        if self.journaled:
            await self._wait_drained()
        session = self.session("final")
        for topic, partition_count in self.topics.items():
            for partition in range(partition_count):
                await self._read_whole(session, topic, partition)
            if topic in self.transactional:
                for partition in range(partition_count):
                    await read_committed_whole(session, topic, partition)
        session.close()
        if self.expects_tidy_store:
            await self._check_store()

    async def _wait_drained(self) -> None:
        """Until what is in the journals is in the logs, and nothing can appear there any more."""
        left: list[str] = []
        for _ in range(int(DRAIN_S_MAX)):
            left = self._unsequenced()
            if not left and not self.cluster.bucket.late_puts:
                return
            await self.sleep(1.0)
        raise Undrained(f"{len(left)} files and batches of journals are not sequenced after {DRAIN_S_MAX} s: {left[0]}")

    def _unsequenced(self) -> list[str]:
        """Files that no sequence's record has, and batches that wait."""
        control = self.cluster.control
        assert control is not None
        left: list[str] = []
        for key in self.cluster.bucket.objects:
            if key.startswith(JOURNAL_PREFIX):
                file = parse_journal_key(key)
                if not control.journals.sequences.is_sequenced((file.incarnation, file.sequence), file.slot):
                    left.append(key)
        return left + [f"batch {held.name} of {held.key}" for held in control.journals._held.oldest(1)]

    async def _check_store(self) -> None:
        await self.sleep(REST_S)
        used = await self._used_objects()
        stored = {key for key in self.cluster.bucket.objects if not self._is_kept(key)}
        if missing := sorted(used - stored):
            raise Untidy(f"{len(missing)} objects that are in use are gone, among them {missing[0]}")
        if orphans := sorted(stored - used):
            raise Untidy(f"{len(orphans)} objects are left that nothing refers to, among them {orphans[0]}")

    def _is_kept(self, key: str) -> bool:
        """Whether it stays though no extent is in it: what agents tell each other, and fences, while their sequence is
        not closed."""
        if not key.startswith(JOURNAL_PREFIX):
            return not key.startswith("data/")
        stored = self.cluster.bucket.objects[key]
        return not decode_object_tail(stored.data, len(stored.data)).extents

    async def _read_whole(self, session: ClientSession, topic: str, partition: int) -> None:
        invoke_s = session.now_s
        start = await session.retry(lambda: list_offset(session, topic, partition, "earliest"))
        end = await session.retry(lambda: list_offset(session, topic, partition, "latest"))
        records: list[tuple[int, str]] = []
        markers: list[int] = []
        offset = start
        while offset < end:

            async def read(at: int = offset) -> Any:
                return await fetch(session, await session.leader(topic, partition), topic, partition, at)

            try:
                found = await session.retry(read)
            except Disconnected as error:
                raise Unreadable(f"{topic}/{partition} cannot be read from offset {offset} on: {error}") from error
            if found.next_offset == offset:
                continue
            records += found.records
            markers += [each for each in found.markers if each >= start]
            offset = found.next_offset
        self.history.record(
            FinalRead(
                client=session.name,
                invoke_s=invoke_s,
                complete_s=session.now_s,
                topic=topic,
                partition=partition,
                log_start_offset=start,
                high_watermark=end,
                records=records,
                markers=markers,
            )
        )

    async def _used_objects(self) -> set[str]:
        """By the index alone, whatever is counted elsewhere. Nothing is new any more, so all of it is in the table."""
        control = self.cluster.control
        assert control is not None
        rows = await control._metadata.read(
            lambda tx: tx.query(
                "SELECT DISTINCT o.object_key FROM extents e JOIN objects o ON o.number = e.object_number"
            )
        )
        return {row[0] for row in rows}


class Unreadable(Exception):
    """A log that promises records which nobody can be given: their object is gone, or is not what it should be."""


class Untidy(Exception):
    """A store that, after a long rest, does not hold exactly the objects that are in use."""


class Undrained(Exception):
    """Journals with files that nobody sequences although everything was well again."""


class Stuck(Exception):
    """Clients that never came to rest although everything was well again."""


@dataclass(frozen=True, slots=True)
class Run:
    """What came of one seed."""

    seed: int
    history: History
    faults: int
    strikes_laid_out: int
    simulated_s: float
    error: str = ""
    """What stopped the run before its end: clients that got stuck, an error that nobody caught."""


def simulate(
    seed: int, scenario: Scenario, plan: ClusterPlan | None = None, *, strikes: frozenset[int] | None = None
) -> Run:
    """Run a scenario under one seed, from nothing to its end."""
    with warnings.catch_warnings():
        # A killed process leaves coroutines behind that nobody will ever await.
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
        return _simulate(seed, scenario, plan or getattr(scenario, "plan", None) or ClusterPlan(), strikes)


def _simulate(seed: int, scenario: Scenario, plan: ClusterPlan, strikes: frozenset[int] | None) -> Run:
    _silence_logs()
    entropy = SeededEntropy(seed)
    loop = VirtualLoop(entropy)  # type: ignore[abstract]
    error = ""
    with tempfile.TemporaryDirectory(prefix="braidlog-sim-", dir=_memory_folder()) as folder:
        world = World(loop, entropy, Path(folder), plan)
        world.strikes = strikes

        async def main() -> None:
            await world.cluster.start()
            await scenario(world)
            await world.finish()

        try:
            loop.run_until_complete(main())
        except Exception as problem:  # noqa: BLE001 - whatever stops a run is its result
            error = f"{type(problem).__name__}: {problem}"
        if not error and loop.failures:
            error = f"uncaught in a process: {loop.failures[0].get('exception')!r}"
        if not error and world.cluster.troubles:
            error = f"shards: {world.cluster.troubles[0]}"
        loop.close()
        gc.collect()
    return Run(seed, world.history, world.faults, world.strikes_laid_out, loop.time(), error)


def _memory_folder() -> str | None:
    """Metadata in memory-backed files: durable as far as the simulation goes, and quick."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _silence_logs() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
