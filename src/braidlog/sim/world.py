"""One simulated run: a cluster, clients, faults, and their history.

A scenario is a coroutine that takes a `World` and says what happens in it. `simulate` runs it under one seed; the
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
from braidlog.sim.clients.committed_reads import CommittedReader, read_committed_whole
from braidlog.sim.clients.consumer_members import ConsumerMember
from braidlog.sim.clients.consumers import GroupMember, SimReader, fetch, list_offset
from braidlog.sim.clients.producers import ProducerStyle, SimProducer
from braidlog.sim.clients.session import ClientSession
from braidlog.sim.clients.transactions import TransactionalProducer
from braidlog.sim.clients.wire_client import Disconnected, request_types
from braidlog.sim.cluster import ClusterPlan, SimCluster
from braidlog.sim.history import ALL_IS_WELL, Compacted, Event, FinalRead, History, Journaled
from braidlog.sim.job_checks import check_clean, clean_end_offsets
from braidlog.sim.virtual.clock import EPOCH_MS
from braidlog.sim.virtual.loop import VirtualLoop

CREATE_TOPICS, CREATE_TOPICS_VERSION = 19, 7
DELETE_RECORDS, DELETE_RECORDS_VERSION = 21, 2
REST_S = 400.0
"""Long enough, after all grace periods, for the sweeper to have seen every object."""
DRAIN_S_MAX = 600.0
"""How long it may take to sequence everything that is in journals."""
SETTLE_S_MAX = 600.0
"""How long clients may take to finish after the last fault."""

Scenario = Callable[["World"], Awaitable[None]]
AnyClient = SimProducer | SimReader | GroupMember | TransactionalProducer | CommittedReader
Client = TypeVar("Client", bound=AnyClient)


class World:
    """Lets a scenario start clients and faults.

    Everything is seeded, and all that clients see is recorded.
    """

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
        """Whether gaps are given up so soon that order is lost. Set it before topics are created."""
        self.strikes: frozenset[int] | None = None
        """The numbers of the nemesis' strikes that take place; None: all."""
        self.strikes_laid_out = 0
        self.faults = 0
        self.expects_tidy_store = False
        """Whether the store must in the end hold exactly the objects that are in use."""
        self.expects_clean_logs = False
        """Whether a key must in the end be there once in what was compacted."""
        self._clients: list[AnyClient] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._sessions = 0

    def note(self, what: str) -> None:
        """Record in the history that something was done to the system."""
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
        """Ask once to delete records. Whether it worked shows in the log start."""
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
        style = ProducerStyle(**options)
        kind = "idempotent" if style.idempotent else "plain"
        return self._start(SimProducer(self.session(kind), targets, style, journaled=self.journaled))

    def reader(self, targets: list[tuple[str, int]]) -> SimReader:
        return self._start(SimReader(self.session("reader"), targets))

    def transactional_producer(self, targets: list[tuple[str, int]], **options: Any) -> TransactionalProducer:
        """Start a transactional producer.

        Committed data of its topics is then read in the end, too.
        """
        self.transactional.update(dict.fromkeys(topic for topic, _ in targets))
        session = self.session("transactional")
        settings = {"version": 1, "group": f"group-of-{session.name}", "pause_s": 0.5, **options}
        return self._start(TransactionalProducer(session, f"id-of-{session.name}", targets, **settings))

    def committed_reader(self, targets: list[tuple[str, int]]) -> CommittedReader:
        return self._start(CommittedReader(self.session("committed-reader"), targets))

    def member(self, group: str, topic: str) -> GroupMember:
        return self._start(GroupMember(self.session("member"), group, topic, self.topics[topic]))

    def consumer_member(self, group: str, topic: str) -> ConsumerMember:
        """Start a member of a group whose partitions the coordinator assigns."""
        return self._start(ConsumerMember(self.session("consumer"), group, topic, self.topics[topic]))

    def _start(self, client: Client) -> Client:
        self._clients.append(client)
        self._tasks.append(self.loop.create_task(client.run()))
        return client

    # ── the end ──

    async def finish(self) -> None:
        """End all faults, let the clients finish, and read every log from start to end."""
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
        clean_ends = await clean_end_offsets(self) if self.expects_clean_logs else {}
        session = self.session("final")
        for topic, partition_count in self.topics.items():
            for partition in range(partition_count):
                await self._read_whole(session, topic, partition)
            if topic in self.transactional:
                for partition in range(partition_count):
                    await read_committed_whole(session, topic, partition)
        session.close()
        check_clean(self, clean_ends)
        if self.expects_tidy_store:
            await self._check_store()

    async def _wait_drained(self) -> None:
        """Wait until everything in journals is sequenced, and no late put can add to it."""
        left: list[str] = []
        for _ in range(int(DRAIN_S_MAX)):
            left = self._unsequenced()
            if not left and not self.cluster.bucket.late_puts:
                return
            await self.sleep(1.0)
        raise Undrained(f"{len(left)} files and batches of journals are not sequenced after {DRAIN_S_MAX} s: {left[0]}")

    def _unsequenced(self) -> list[str]:
        """List journal files that are not sequenced, and batches that are held."""
        control = self.cluster.control
        assert control is not None
        held = control.parts.journals._held.oldest(1)
        return self._unsequenced_files() + [f"batch {each.name} of {each.key}" for each in held]

    def _unsequenced_files(self) -> list[str]:
        control = self.cluster.control
        assert control is not None
        left: list[str] = []
        for key in self.cluster.bucket.objects:
            if key.startswith(JOURNAL_PREFIX):
                file = parse_journal_key(key)
                if not control.parts.journals.sequences.is_sequenced((file.incarnation, file.sequence), file.slot):
                    left.append(key)
        return left

    def check_unsequenced_age(self, age_s_max: float) -> None:
        """Check that all journal files older than `age_s_max` are sequenced."""
        born_before_ms = EPOCH_MS + 1000 * (self.loop.time() - age_s_max)
        old = [
            key for key in self._unsequenced_files() if self.cluster.bucket.objects[key].modified_ms < born_before_ms
        ]
        if old:
            raise Undrained(f"{len(old)} files are older than {age_s_max} s and not sequenced: {old[0]}")

    async def _check_store(self) -> None:
        await self.sleep(REST_S)
        used = await self._used_objects()
        stored = {key for key in self.cluster.bucket.objects if not self._is_kept(key)}
        if missing := sorted(used - stored):
            raise Untidy(f"{len(missing)} objects that are in use are gone, among them {missing[0]}")
        if orphans := sorted(stored - used):
            raise Untidy(f"{len(orphans)} objects are left that nothing refers to, among them {orphans[0]}")

    def _is_kept(self, key: str) -> bool:
        """Tell whether an object stays although it has no extents.

        Such are the objects that agents leave for each other, and fences of journal sequences that are not closed.
        """
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
        """Find the objects in use, by the index alone.

        Nothing is recent any more, so the table has all extents.
        """
        control = self.cluster.control
        assert control is not None
        rows = await control._metadata.read(
            lambda tx: tx.query(
                "SELECT DISTINCT o.object_key FROM extents e JOIN objects o ON o.number = e.object_number"
            )
        )
        return {row[0] for row in rows}


class Unreadable(Exception):
    """A record of the log cannot be read: its object is gone or damaged."""


class Untidy(Exception):
    """The store does not hold exactly the objects that are in use."""


class Undrained(Exception):
    """Journal files stay unsequenced although all faults are over."""


class Stuck(Exception):
    """Clients do not finish although all faults are over."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one seed."""

    seed: int
    history: History
    faults: int
    strikes_laid_out: int
    simulated_s: float
    error: str = ""
    """What stopped the run before its end: stuck clients, or an uncaught error."""


def simulate(
    seed: int, scenario: Scenario, plan: ClusterPlan | None = None, *, strikes: frozenset[int] | None = None
) -> Run:
    """Run a scenario under one seed, from an empty cluster to the final reads."""
    with warnings.catch_warnings():
        # A killed process leaves coroutines behind that are never awaited.
        warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)
        return _simulate(seed, scenario, plan or ClusterPlan(), strikes)


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
    """Give a memory-backed folder for the metadata.

    It is quick, and durable enough for a simulation.
    """
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _silence_logs() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
