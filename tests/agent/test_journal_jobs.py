"""Scans, replays and seals of journals, on a store whose requests are counted."""

import asyncio
from collections.abc import Callable

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import CollectorRegistry
from tests.fakes import FakeClock

from braidlog.agent.journal_jobs import JournalExecutor
from braidlog.control.interface import (
    REPLAY,
    SCAN,
    CommitObject,
    ControlPlane,
    JobTask,
    ObjectVerdict,
    ReplayDone,
    ReplayTask,
    ScanTask,
    SequenceName,
    TakenJob,
)
from braidlog.jobs.executor import UnknownJob
from braidlog.objects.format import CorruptObject, decode_footer_bytes, encode_tail, read_footer
from braidlog.objects.keys import SLOTS_IN_FLIGHT_MAX, SLOTS_PER_SEQUENCE_MAX, journal_key, sequence_prefix
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.metered import MeteredStore, StoreMetrics
from braidlog.objects.store import AlreadyExists, Bytes, NotFound, Tail
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import ControlUnavailable

TOPIC = b"t" * 16
FILE_BYTES = 100


class Store(MemoryStore):
    """What a test wants to happen right before a put."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(MemoryBucket(), url="memory://", clock=clock)
        self.before_put: Callable[[str], None] = lambda key: None
        self.vanished: set[str] = set()

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        self.before_put(key)
        return await super().put(key, data, overwrite=overwrite)

    async def get_tail(self, key: str, length: int) -> Tail:
        if key in self.vanished:
            raise NotFound(key)
        return await super().get_tail(key, length)


class Journals:
    """A store with journals, and a control plane that remembers what was committed."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.entropy = SeededEntropy(3)
        self.bucket = Store(self.clock)
        self.store = MeteredStore(self.bucket, StoreMetrics(CollectorRegistry()), clock=self.clock)
        self.committed: list[CommitObject] = []
        self.failures = 0
        self.code = 0
        control: ControlPlane = self  # type: ignore[assignment]
        self.executor = JournalExecutor(control, self.store, self.clock, SeededEntropy(4), incarnation="sealer")

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise ControlUnavailable("away")
        self.committed.append(request)
        return ObjectVerdict(self.code, [], "no" if self.code else "")

    def add(self, incarnation: str, number: int, slot: int) -> None:
        """A file as an agent leaves it."""
        entry = BatchEntry(FILE_BYTES, 1, 0, 5)
        extent = ExtentEntry(TOPIC, 0, 0, FILE_BYTES, 1, 5, 5, KAFKA_BATCHES, [entry])
        footer = Footer(self.entropy.token(16), 0, incarnation, 0, "", [extent])
        key = journal_key(incarnation, number, slot)
        if key in self.bucket._bucket.stored:
            raise AlreadyExists(key)
        self.bucket._keep(key, b"x" * FILE_BYTES + encode_tail(footer))

    async def replay(
        self, *, watermark: int = 0, known: tuple[tuple[int, int], ...] = (), seal: bool = False
    ) -> ReplayDone:
        return await self.executor.replay(ReplayTask("a", 0, watermark, list(known), seal))

    @property
    def slots(self) -> list[int]:
        """That were committed."""
        return [int(request.key[-10:]) for request in self.committed]

    def requests(self, operation: str) -> int:
        return self.store.statistics().requests[operation]

    @property
    def reads(self) -> int:
        return self.store.statistics().usage.get_count


async def test_a_scan_over_ten_thousand_sequenced_files_is_a_few_lists() -> None:
    journals = Journals()
    for number in range(10):
        for slot in range(SLOTS_PER_SEQUENCE_MAX):
            journals.add("a", number, slot)
    done = await journals.executor.scan(ScanTask({"a": 10}))
    assert done.sequences == []
    assert journals.requests("list") <= 20
    assert journals.reads == 0


async def test_so_is_one_over_many_incarnations() -> None:
    journals = Journals()
    for incarnation in range(10):
        for number in range(10):
            for slot in range(100):
                journals.add(f"agent{incarnation}", number, slot)
    done = await journals.executor.scan(ScanTask({f"agent{number}": 10 for number in range(10)}))
    assert done.sequences == []
    assert journals.requests("list") <= 20
    assert journals.reads == 0


async def test_a_scan_finds_every_sequence_that_is_not_known() -> None:
    journals = Journals()
    for incarnation, number, slots in (
        ("a", 0, 5),
        ("a", 1, SLOTS_PER_SEQUENCE_MAX),
        ("a", 2, 1),
        ("b", 0, 1),
        ("b-c", 7, 3),
        ("b-c", 9, 3),
    ):
        for slot in range(slots):
            journals.add(incarnation, number, slot)
    await journals.bucket.put("journal/a/0000000001/strange", b"?")
    await journals.bucket.put("journal/strange", b"?")
    done = await journals.executor.scan(ScanTask({"a": 1, "b-c": 8, "gone": 3}))
    assert sorted((name.incarnation, name.number) for name in done.sequences) == [
        ("a", 1),
        ("a", 2),
        ("b", 0),
        ("b-c", 9),
    ]
    assert await journals.executor.scan(ScanTask({"a": 3, "b": 1, "b-c": 10})) == type(done)([])


async def test_a_replay_commits_in_order_what_is_not_known_and_reads_ends_alone() -> None:
    journals = Journals()
    for slot in range(50):
        journals.add("a", 0, slot)
    journals.add("a", 1, 0)
    done = await journals.replay(watermark=3, known=((5, 7), (40, 50)))
    expected = [3, 4, *range(7, 40)]
    assert journals.slots == expected
    assert done == ReplayDone("a", 0, False, expected, [])
    assert all(request.replayed for request in journals.committed)
    first = journals.committed[0]
    assert (first.size, first.footer) == await _stored(journals, first.key)
    assert decode_footer_bytes(first.footer).incarnation == "a"
    assert journals.reads == len(expected)
    assert journals.requests("put") == 0


async def _stored(journals: Journals, key: str) -> tuple[int, bytes]:
    data = bytes((await journals.bucket.get(key)).data)
    footer = await read_footer(journals.bucket, key)
    tail = encode_tail(footer)
    return len(data), tail[:-36]


async def test_nothing_new_is_one_list() -> None:
    journals = Journals()
    for slot in range(SLOTS_PER_SEQUENCE_MAX):
        journals.add("a", 0, slot)
    assert (await journals.replay(watermark=SLOTS_PER_SEQUENCE_MAX)).listed == []
    assert (journals.requests("list"), journals.reads) == (1, 0)


async def test_an_empty_sequence_is_sealed_at_its_start() -> None:
    journals = Journals()
    done = await journals.replay(seal=True)
    assert done.sealed
    assert done.fenced == done.listed == list(range(SLOTS_IN_FLIGHT_MAX))
    assert journals.committed == []
    with pytest.raises(AlreadyExists):
        journals.add("a", 0, 0)


async def test_a_seal_fills_the_gaps_of_the_window() -> None:
    journals = Journals()
    for slot in (0, 1, 3, 6):
        journals.add("a", 0, slot)
    done = await journals.replay(watermark=1, seal=True)
    assert done.listed == list(range(1, 10))
    assert done.fenced == [2, 4, 5, 7, 8, 9]
    assert journals.slots == [1, 3, 6]


async def test_a_seal_that_was_begun_by_somebody_else_is_finished() -> None:
    journals = Journals()
    journals.add("a", 0, 0)
    fence = encode_tail(Footer(b"n" * 16, 0, "other", 0, "", []))
    for slot in (1, 2):
        await journals.bucket.put(journal_key("a", 0, slot), fence)
    done = await journals.replay(seal=True)
    assert {1, *range(1, 1 + SLOTS_IN_FLIGHT_MAX)} <= set(done.fenced)
    assert journals.slots == [0]
    again = await journals.replay(watermark=1, seal=True)
    assert set(done.fenced) <= set(again.fenced)
    assert journals.slots == [0]


async def test_a_full_sequence_needs_no_fences() -> None:
    journals = Journals()
    for slot in range(SLOTS_PER_SEQUENCE_MAX):
        journals.add("a", 0, slot)
    done = await journals.replay(watermark=SLOTS_PER_SEQUENCE_MAX - 1, seal=True)
    assert done == ReplayDone("a", 0, True, [SLOTS_PER_SEQUENCE_MAX - 1], [])
    assert journals.requests("put") == 0


async def test_the_end_of_a_sequence_ends_its_window() -> None:
    journals = Journals()
    last = SLOTS_PER_SEQUENCE_MAX - 1
    done = await journals.replay(watermark=last, seal=True)
    assert done.fenced == [last]


@pytest.mark.parametrize("ahead", range(1, 2 * SLOTS_IN_FLIGHT_MAX))
async def test_a_writer_that_goes_on_meanwhile_is_sealed_behind_all_it_can_have_under_way(ahead: int) -> None:
    """The writer keeps to its window, and gets so many files in before the sealer's fences."""
    journals = Journals()
    written = 0

    def write(key: str) -> None:
        nonlocal written
        while written < ahead:
            try:
                journals.add("a", 0, written)
            except AlreadyExists:
                break
            written += 1

    journals.bucket.before_put = write
    done = await journals.replay(seal=True)
    assert journals.slots == list(range(written))
    lowest_fence = min(done.fenced)
    assert lowest_fence == written
    # What the writer may still have under way lies within its window, and finds every slot there taken.
    assert set(range(written, written + SLOTS_IN_FLIGHT_MAX)) <= set(done.listed)


async def test_a_commit_without_an_answer_is_repeated() -> None:
    journals = Journals()
    journals.add("a", 0, 0)
    journals.failures = 3
    assert (await journals.replay()).listed == [0]
    assert journals.slots == [0]


async def test_a_control_plane_that_stays_away_fails_the_job() -> None:
    journals = Journals()
    for slot in range(30):
        journals.add("a", 0, slot)
    journals.failures = 10**6
    with pytest.raises(ControlUnavailable):
        await journals.replay()


async def test_a_refusal_fails_the_job() -> None:
    journals = Journals()
    journals.add("a", 0, 0)
    journals.code = int(ErrorCode.unknown_server_error)
    with pytest.raises(CorruptObject):
        await journals.replay()


async def test_a_file_that_cannot_be_read_does_not_keep_others_from_being_sequenced() -> None:
    journals = Journals()
    for slot in (0, 2):
        journals.add("a", 0, slot)
    await journals.bucket.put(journal_key("a", 0, 1), b"what is this?")
    with pytest.raises(CorruptObject):
        await journals.replay()
    assert journals.slots == [0, 2]


async def test_a_file_that_was_swept_meanwhile_is_passed_over() -> None:
    journals = Journals()
    for slot in range(3):
        journals.add("a", 0, slot)
    journals.bucket.vanished.add(journal_key("a", 0, 1))
    assert (await journals.replay()).listed == [0, 1, 2]
    assert journals.slots == [0, 2]


async def test_jobs() -> None:
    journals = Journals()
    journals.add("a", 0, 0)

    def job(kind: str, **task: object) -> TakenJob:
        return TakenJob(1, b"", 0, 1000, JobTask(kind, [], [], 0, **task))  # type: ignore[arg-type]

    scanned = await journals.executor.run(job(SCAN, scan=ScanTask({})))
    assert scanned.scan is not None
    assert scanned.scan.sequences == [SequenceName("a", 0)]
    replayed = await journals.executor.run(job(REPLAY, replay=ReplayTask("a", 0, 0, [], False)))
    assert replayed.replay == ReplayDone("a", 0, False, [0], [])
    with pytest.raises(UnknownJob):
        await journals.executor.run(job("merge"))


async def test_what_it_lists_is_one_folder() -> None:
    journals = Journals()
    assert sequence_prefix("a", 0) == "journal/a/0000000000/"
    journals.add("ab", 0, 0)
    assert (await journals.replay()).listed == []
