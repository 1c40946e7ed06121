"""A group coordinator over real SQLite in virtual time: the loop jumps to the next timer instead of waiting for it."""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, TypeVar

from tests.control.groups.classic.driver import join_request, sync_request

from braidlog.control.groups.coordinator import GroupCoordinator
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.interface import (
    CommitOffsets,
    FetchOffsets,
    GroupHeartbeat,
    JoinAnswer,
    OffsetToCommit,
    SyncAnswer,
)
from braidlog.control.metadata.progress import Progress
from braidlog.control.metadata.store import MetadataStore, Transaction, open_metadata
from braidlog.runtime.entropy import SeededEntropy
from braidlog.sim.virtual.clock import SimClock

T = TypeVar("T")

TOPIC = b"t" * 16
OTHER_TOPIC = b"u" * 16
NAMES = {TOPIC: "t", OTHER_TOPIC: "u"}


class _JumpingSelector(selectors.DefaultSelector):
    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everything waits, and nothing will ever happen")
        self.loop.now_s += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Executors run their work at once, on this thread: threads know nothing of virtual time."""

    def __init__(self) -> None:
        self.now_s = 5000.0
        selector = _JumpingSelector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - as an executor hands it over
                future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self.call_soon(run, context=Context())
        return future


class FaultyMetadata:
    """The real store, which counts its transactions and fails on demand."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.transaction_count = 0
        self.failure: Exception | None = None

    @property
    def fencing_epoch(self) -> int:
        return self.store.fencing_epoch

    async def acquire_fencing_epoch(self) -> int:
        return await self.store.acquire_fencing_epoch()

    @property
    def progress(self) -> Progress:
        return self.store.progress

    async def plan(self, fn: Callable[[Transaction], T]) -> T:
        self.transaction_count += 1
        if self.failure is not None:
            raise self.failure
        return await self.store.plan(fn)

    async def durable(self) -> None:
        await self.store.durable()

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        result = await self.plan(fn)
        await self.durable()
        return result

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        return await self.store.read(fn)

    async def peek(self, fn: Callable[[Transaction], T]) -> T:
        return await self.store.peek(fn)

    async def close(self) -> None:
        await self.store.close()


class CommittedTopics:
    """Topics by id, with the partition count of each. None of them is ever assigned by the coordinator."""

    revision = 0

    def __init__(self, counts: dict[bytes, int]) -> None:
        self._counts = counts

    def has_partition(self, topic_id: bytes, index: int) -> bool:
        return 0 <= index < self._counts.get(topic_id, 0)

    def name_of(self, topic_id: bytes) -> str | None:
        return NAMES.get(topic_id)

    def find(self, name: str) -> tuple[bytes, int] | None:
        return None

    def names(self) -> list[str]:
        return []


class House:
    """A metadata store and the coordinator that lives on it, which can be restarted."""

    def __init__(self, loop: VirtualLoop, metadata: FaultyMetadata, settings: GroupSettings) -> None:
        self.loop = loop
        self.metadata = metadata
        self.settings = settings
        self.clock = SimClock(loop)
        self.topics = {TOPIC: 8, OTHER_TOPIC: 8}
        self.coordinator = self.new_coordinator()

    def new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.metadata,
            self.clock,
            SeededEntropy("the same after every restart"),
            self.settings,
            CommittedTopics(self.topics),
        )

    async def restart(self) -> None:
        """As after a crash: nothing is handed over but what is durable."""
        await self.coordinator.close()
        self.coordinator = self.new_coordinator()
        await self.coordinator.start()

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def join(self, member_id: str = "", **options: Any) -> JoinAnswer:
        return await self.coordinator.join_group(join_request(member_id, **options))

    async def sync(self, joined: JoinAnswer, assignments: dict[str, bytes] | None = None, **options: Any) -> SyncAnswer:
        return await self.coordinator.sync_group(sync_request(joined, assignments, **options))

    async def heartbeat(self, joined: JoinAnswer, *, instance: str | None = None, group_id: str = "g") -> int:
        request = GroupHeartbeat(group_id, joined.generation_id, joined.member_id, instance)
        return (await self.coordinator.heartbeat_group(request)).error_code

    async def stable(self, count: int, **options: Any) -> list[JoinAnswer]:
        """A stable group; each member is assigned its number, the first one leads."""
        joined = await asyncio.gather(*(self.join(**options) for _ in range(count)))
        leader = next(answer for answer in joined if answer.members)
        joined.sort(key=lambda answer: answer is not leader)
        assignments = {answer.member_id: b"%d" % index for index, answer in enumerate(joined)}
        group = {"group_id": options.get("group_id", "g")}
        await asyncio.gather(*(self.sync(each, assignments if each is leader else None, **group) for each in joined))
        return joined

    async def commit(
        self,
        offset: int,
        joined: JoinAnswer | None = None,
        *,
        topic_id: bytes = TOPIC,
        partition: int = 0,
        metadata: str = "",
        group_id: str = "g",
    ) -> int:
        """Commit one offset, as a member or as a consumer outside any group."""
        generation_id, member_id = (joined.generation_id, joined.member_id) if joined else (-1, "")
        offsets = [OffsetToCommit(topic_id, partition, offset, 3, metadata)]
        request = CommitOffsets(group_id, generation_id, member_id, None, offsets)
        return (await self.coordinator.commits.commit_offsets(request)).error_codes[0]

    async def committed(self, *keys: tuple[bytes, int], group_id: str = "g") -> list[int]:
        """The committed offsets of these partitions; of all that there are where none is named."""
        answer = await self.coordinator.commits.fetch_offsets(FetchOffsets(group_id, list(keys) or None))
        assert answer.error_code == 0
        return [each.offset for each in answer.offsets]


def in_virtual_time(
    test: Callable[[House], Coroutine[Any, Any, None]], settings: GroupSettings | None = None, *, start: bool = True
) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        metadata = FaultyMetadata(await open_metadata("sqlite://"))
        await metadata.acquire_fencing_epoch()
        house = House(loop, metadata, settings or GroupSettings(initial_rebalance_delay_ms=0))
        if start:
            await house.coordinator.start()
        try:
            await test(house)
        finally:
            metadata.failure = None
            await house.coordinator.close()
            await metadata.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())
