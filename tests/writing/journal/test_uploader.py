"""The journal's stages around a store and a control plane that do what the test says."""

import asyncio
from collections.abc import Awaitable, Callable

from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.control.interface import ABANDONED, CommitObject, ControlPlane, ObjectVerdict
from braidlog.objects.format import decode_object_tail
from braidlog.objects.keys import SLOTS_IN_FLIGHT_MAX, SLOTS_PER_SEQUENCE_MAX, journal_key
from braidlog.objects.layout import BatchEntry
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import AlreadyExists, Bytes, StoreUnavailable
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.arena import Arena
from braidlog.writing.follow_on_failures import FollowOnFailures
from braidlog.writing.journal import lazy_sequencing
from braidlog.writing.journal.lazy_sequencing import LazySequencing, OwnFile
from braidlog.writing.journal.unsequenced import Unsequenced
from braidlog.writing.journal.uploader import JournalUploader
from braidlog.writing.order import Order
from braidlog.writing.packing import Packer, Writer
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.uploads import Uploads

TOPIC = b"t" * 16
AGE_S = 60.0


class Store(MemoryStore):
    """Each put first does what the test has prepared for it."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryBucket(), url="memory://", clock=clock)
        self.before: list[Callable[[str, Bytes], Awaitable[None]] | None] = []

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        before = self.before.pop(0) if self.before else None
        if before is not None:
            await before(key, data)
        return await super().put(key, data, overwrite=overwrite)

    async def fence(self, key: str, _: Bytes) -> None:
        await super().put(key, b"a fence")


class Control:
    """Only `commit_object`."""

    def __init__(self) -> None:
        self.committed: list[str] = []
        self.is_away = False
        self.code = int(ErrorCode.none)

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        await asyncio.sleep(0)
        if self.is_away:
            raise ControlUnavailable("away")
        self.committed.append(request.key)
        return ObjectVerdict(self.code, [], "no" if self.code else "")


class Path:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = Store(self.clock)
        self.control = Control()
        self.tasks = TaskGroup("test")
        self.told: list[tuple[int, int, int]] = []
        self.uploaded: list[str] = []
        self.ended: list[tuple[int, int]] = []
        self.finished = self.answered = 0
        control: ControlPlane = self.control  # type: ignore[assignment]
        unsequenced = Unsequenced(
            FollowOnFailures(self.clock), on_empty=lambda partition: None, on_left=lambda partitions: None
        )
        self.lazy = LazySequencing(
            control,
            self.clock,
            SeededEntropy(2),
            deadline_s=10.0,
            open_file=lambda draft: OwnFile(draft, unsequenced),
        )
        self.journal = JournalUploader(
            self.store,
            Packer(Writer("abc", "z", lambda: -1), Arena(free_bytes_max=0), self.clock, SeededEntropy(1)),
            Uploads(
                self.lazy,
                self.tasks,
                on_ended=self._finish,
                on_stored=lambda key, _: self.uploaded.append(key),
            ),
            self.clock,
            sequence_age_s=AGE_S,
            on_sequence_ended=lambda number, slot_count: self.ended.append((number, slot_count)),
        )
        self._order = Order(self.journal)

    def _finish(self, _: Draft) -> None:
        self.finished += 1

    def _answer(self) -> None:
        self.answered += 1

    def write(self, partition: int = 0) -> Draft:
        request = WriteRequest(TOPIC, partition, b"x" * 100, BatchEntry(100, 1, 0, 5), 5, -1, self._tell)
        draft = Draft({(TOPIC, partition): [request]}, 100, on_answered=self._answer)
        self._order.submit(draft)
        return draft

    def _tell(self, request: WriteRequest) -> None:
        self.told.append((request.partition, request.error_code, request.base_offset))

    async def settle(self) -> None:
        await self.tasks.wait_all()
        await self.lazy.finish(60.0)


async def test_files_fill_a_sequence_and_are_sequenced_behind_their_acknowledgement() -> None:
    path = Path()
    for _ in range(3):
        path.write()
    await path.tasks.wait_all()
    assert path.told == [(0, 0, 0)] * 3
    assert path.answered == path.finished == 3
    assert len(path.control.committed) < 3
    await path.settle()
    keys = [journal_key("abc", 0, slot) for slot in range(3)]
    assert path.control.committed == path.uploaded == keys
    blob = await path.store.get(keys[0])
    footer = decode_object_tail(blob.data, len(blob.data))
    assert (footer.write_epoch, footer.incarnation, len(footer.extents)) == (0, "abc", 1)
    assert path.lazy.statistics().sequenced == 3
    assert path.lazy.statistics().pending_bytes == 0


async def test_a_full_sequence_is_followed_by_the_next() -> None:
    path = Path()
    for _ in range(SLOTS_PER_SEQUENCE_MAX + 1):
        path.write()
        await path.tasks.wait_all()
    await path.settle()
    assert path.control.committed[-1] == journal_key("abc", 1, 0)
    assert path.journal.statistics().sequences == 2
    assert path.ended == [(0, SLOTS_PER_SEQUENCE_MAX)]
    path.journal.close()
    assert path.ended == [(0, SLOTS_PER_SEQUENCE_MAX), (1, 1)]
    path.journal.close()
    assert len(path.ended) == 2


async def test_an_old_sequence_is_followed_by_the_next() -> None:
    path = Path()
    path.write()
    await path.tasks.wait_all()
    path.clock.advance(AGE_S)
    path.write()
    await path.settle()
    assert path.uploaded == [journal_key("abc", 0, 0), journal_key("abc", 1, 0)]
    assert path.ended == [(0, 1)]


async def test_the_end_of_a_sequence_with_a_file_under_way_is_told_when_that_is_there() -> None:
    path = Path()

    async def sleep(key: str, data: Bytes) -> None:
        path.clock.advance(AGE_S)
        path.write()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert path.ended == []

    path.store.before = [sleep]
    path.write()
    await path.settle()
    assert path.ended == [(0, 1)]


async def test_a_slow_file_does_not_hold_up_what_no_longer_fits_its_window() -> None:
    path = Path()
    gate = asyncio.Event()

    async def wait(key: str, data: Bytes) -> None:
        await gate.wait()

    path.store.before = [wait]
    for partition in range(SLOTS_IN_FLIGHT_MAX + 2):
        path.write(partition)
    while len(path.told) < SLOTS_IN_FLIGHT_MAX + 1:
        await asyncio.sleep(0)
    assert path.uploaded[-2:] == [journal_key("abc", 1, 0), journal_key("abc", 1, 1)]
    gate.set()
    await path.settle()
    path.write()  # the first sequence has room again
    await path.settle()
    assert path.uploaded[-1] == journal_key("abc", 0, SLOTS_IN_FLIGHT_MAX)


async def test_a_sealed_out_file_goes_to_another_sequence() -> None:
    path = Path()
    path.store.before = [path.store.fence]
    path.write()
    await path.settle()
    path.write()
    await path.settle()
    assert path.uploaded == [journal_key("abc", 1, 0), journal_key("abc", 1, 1)]
    assert path.told == [(0, 0, 0)] * 2
    assert path.journal.statistics().sealed_out == 1


async def test_a_file_that_is_there_already_is_recognised() -> None:
    path = Path()

    async def repeat(key: str, data: Bytes) -> None:
        await MemoryStore.put(path.store, key, data)
        raise AlreadyExists(key)

    path.store.before = [repeat]
    path.write()
    await path.settle()
    assert path.uploaded == [journal_key("abc", 0, 0)]
    assert path.journal.statistics().sealed_out == 0


async def test_a_file_that_fails_fails_its_requests_alone_and_its_sequence_is_left() -> None:
    path = Path()

    async def fail(key: str, data: Bytes) -> None:
        await asyncio.sleep(0)
        raise StoreUnavailable("no")

    path.store.before = [fail, None]
    path.write()
    path.write()
    await path.settle()
    path.write()
    await path.settle()
    assert sorted(code for _, code, _ in path.told) == [0, 0, ErrorCode.not_enough_replicas_after_append]
    assert path.uploaded == [journal_key("abc", 0, 1), journal_key("abc", 1, 0)]
    assert path.control.committed == path.uploaded
    assert path.journal.statistics().failed == 1
    path.journal.close()
    assert path.ended == [(0, ABANDONED), (1, 1)]


async def test_an_agent_that_slept_too_long_acknowledges_nothing() -> None:
    path = Path()

    async def sleep(key: str, data: Bytes) -> None:
        path.clock.advance(2 * AGE_S)

    path.store.before = [sleep]
    path.write()
    await path.settle()
    assert [code for _, code, _ in path.told] == [ErrorCode.not_enough_replicas_after_append]
    assert path.control.committed == []


async def test_what_the_control_plane_does_not_take_is_left_where_it_is() -> None:
    path = Path()
    path.control.is_away = True
    path.write()
    await path.settle()
    path.control.is_away = False
    path.write()
    await path.settle()
    assert path.told == [(0, 0, 0)] * 2
    assert path.control.committed == [journal_key("abc", 0, 1)]
    assert (path.lazy.statistics().left, path.lazy.statistics().sequenced) == (1, 1)


async def test_a_refusal_changes_nothing() -> None:
    path = Path()
    path.control.code = int(ErrorCode.unknown_server_error)
    path.write()
    await path.settle()
    assert path.told == [(0, 0, 0)]
    assert path.lazy.statistics().left == 1


async def test_only_so_many_wait_for_the_control_plane(monkeypatch) -> None:
    monkeypatch.setattr(lazy_sequencing, "FILES_PENDING_MAX", 2)
    path = Path()
    for _ in range(5):
        path.write()
    await path.tasks.wait_all()
    assert len(path.told) == 5
    await path.settle()
    statistics = path.lazy.statistics()
    assert statistics.left >= 1
    assert statistics.left + statistics.sequenced == 5


async def test_an_agent_whose_machine_was_suspended_acknowledges_nothing_that_may_be_gone() -> None:
    """Others have sealed, replayed and closed its sequence meanwhile: their clocks went on."""
    path = Path()

    async def suspended(key: str, data: Bytes) -> None:
        path.clock.suspend(2 * AGE_S)

    path.store.before = [suspended]
    path.write()
    await path.settle()
    assert [code for _, code, _ in path.told] == [ErrorCode.not_enough_replicas_after_append]


async def test_after_a_suspension_a_new_sequence_is_opened() -> None:
    path = Path()
    path.write()
    await path.tasks.wait_all()
    path.clock.suspend(AGE_S)
    path.write()
    await path.settle()
    assert path.uploaded == [journal_key("abc", 0, 0), journal_key("abc", 1, 0)]
