"""Metadata in the bucket: what counts, who holds it, and what is left when a machine is lost."""

import asyncio
import math
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.control.driver import batch, commit, create_topic, start_plane
from tests.fakes import FakeClock

from braidlog.control.interface import ListJobs
from braidlog.control.metadata import bucket as bucket_module
from braidlog.control.metadata import snapshots as snapshots_module
from braidlog.control.metadata.bucket import CALLS_AHEAD_MAX, BucketMetadata
from braidlog.control.metadata.connection import newest_schema
from braidlog.control.metadata.delta_log import HUNG_S, LATE_S, TRIM_AFTER_S
from braidlog.control.metadata.deltas import (
    DELTA_PREFIX,
    Delta,
    DeltaKind,
    Position,
    decode_delta,
    delta_key,
    encode_delta,
    snapshot_key,
)
from braidlog.control.metadata.image import Image, load_snapshot
from braidlog.control.metadata.store import (
    FOLLOW_INTERVAL_S,
    HEARTBEAT_S,
    BucketParts,
    MetadataBusy,
    MetadataDamaged,
    MetadataError,
    MetadataFull,
    MetadataUnavailable,
    Transaction,
    open_metadata,
)
from braidlog.control.metadata.temporary import TemporaryFolder
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.store import Blob, Bytes, ListPage, StoreTimeout, StoreUnavailable
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import BraidError, Fenced, InvalidSetting
from braidlog.sim.virtual.clock import SimClock
from braidlog.sim.virtual.loop import VirtualLoop


class World:
    """One bucket, and as many holders of its metadata as a test wants, in virtual time."""

    def __init__(self, folder: Path, loop: VirtualLoop) -> None:
        self.folder = folder
        self.clock = SimClock(loop)
        self.bucket = MemoryBucket()
        self._opened = 0

    def store(self) -> "FlakyStore":
        return FlakyStore(self.bucket, url="memory://", clock=self.clock)

    async def open(self, name: str = "", store: MemoryStore | None = None) -> BucketMetadata:
        """With a `name`, the image is kept under it; otherwise each one starts without any."""
        self._opened += 1
        path = self.folder / (name or f"image-{self._opened}")
        return await BucketMetadata.open(
            path, store or self.store(), self.clock, SeededEntropy(self._opened), holder=name or f"n{self._opened}"
        )

    async def hold(self, name: str = "") -> BucketMetadata:
        metadata = await self.open(name)
        await metadata.acquire_fencing_epoch()
        return metadata

    def delete_deltas(self) -> None:
        for number in self.numbers():
            del self.bucket.stored[delta_key(number)]
            self.bucket.keys.remove(delta_key(number))

    def numbers(self) -> list[int]:
        return [int(key.removeprefix(DELTA_PREFIX)) for key in self.bucket.keys if key.startswith(DELTA_PREFIX)]


class FlakyStore(MemoryStore):
    """A store in which a test can act before and after each put."""

    before: Callable[[], Awaitable[None]] | None = None
    after: Callable[[], Awaitable[None]] | None = None
    is_away = False
    is_sleepy = False

    async def get(self, key: str) -> Blob:
        if self.is_away:
            raise StoreUnavailable("away")
        return await super().get(key)

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        if self.before is not None:
            await self.before()
        etag = await super().put(key, data, overwrite=overwrite)
        if self.after is not None:
            await self.after()
        return etag


def virtual(test: Callable[[World], Awaitable[None]]) -> Callable[[Path], None]:
    def run(tmp_path: Path) -> None:
        loop = VirtualLoop(SeededEntropy(test.__name__))
        loop.run_until_complete(test(World(tmp_path, loop)))
        assert loop.failures == []

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def failing(*errors: Exception) -> Callable[[], Awaitable[None]]:
    """Raise these, one after the other, and nothing after that."""
    left = list(errors)

    async def fail() -> None:
        if left:
            raise left.pop(0)

    return fail


def wait_for(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def wait() -> None:
        await event.wait()

    return wait


@pytest.fixture(autouse=True)
def _frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "SNAPSHOT_DELTAS", 5)


def set_fact(name: str, value: str) -> Callable[[Transaction], int]:
    sql = "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    return lambda tx: tx.execute(sql, (name, value))


def facts(tx: Transaction) -> dict[str, str]:
    return dict(tx.query("SELECT name, value FROM facts"))  # type: ignore[arg-type]


@virtual
async def test_what_counts_is_there_without_the_machine_it_was_written_on(world: World) -> None:
    first = await world.hold()
    await first.transact(set_fact("a", "1"))
    await first.transact(set_fact("b", "2"))
    await first.transact(set_fact("a", "3"))
    second = await world.hold()  # with an image of its own, which has nothing yet
    assert await second.read(facts) == {"a": "3", "b": "2"}
    assert second.fencing_epoch == 2
    await second.close()
    await first.close()


@virtual
async def test_an_image_that_is_behind_catches_up_and_one_from_elsewhere_is_made_again(world: World) -> None:
    first = await world.hold("mine")
    await first.transact(set_fact("a", "1"))
    await first.close()
    other = await world.hold("theirs")
    await other.transact(set_fact("a", "2"))
    await other.close()
    again = await world.hold("mine")
    assert await again.read(facts) == {"a": "2"}
    await again.close()
    world.bucket = MemoryBucket()  # the same image, another bucket
    elsewhere = await world.hold("mine")
    assert await elsewhere.read(facts) == {}
    await elsewhere.close()


@virtual
async def test_a_damaged_image_is_made_again(world: World) -> None:
    first = await world.hold("mine")
    await first.transact(set_fact("a", "1"))
    await first.close()
    (world.folder / "mine").write_bytes(b"something else entirely" * 1000)
    again = await world.hold("mine")
    assert await again.read(facts) == {"a": "1"}
    await again.close()


@virtual
async def test_whatever_arrives_while_a_delta_is_on_its_way_shares_the_next_one(world: World) -> None:
    store = world.store()
    metadata = await world.open(store=store)
    await metadata.acquire_fencing_epoch()
    before = len(world.numbers())
    answers = asyncio.Event()
    store.before = wait_for(answers)
    calls = [asyncio.create_task(metadata.transact(set_fact("0", "x")))]
    await world.clock.sleep(0.1)  # its delta is on its way
    calls += [asyncio.create_task(metadata.transact(set_fact(str(number), "x"))) for number in range(1, 50)]
    await world.clock.sleep(0.1)
    assert metadata.progress.planned == 50  # all have run, and nobody was answered
    assert not [call for call in calls if call.done()]
    answers.set()
    await asyncio.gather(*calls)
    assert len(world.numbers()) - before == 2
    assert len(await metadata.read(facts)) == 50
    await metadata.close()


@virtual
async def test_a_call_that_fails_leaves_nothing_and_its_neighbours_everything(world: World) -> None:
    metadata = await world.hold()

    def fail(tx: Transaction) -> None:
        tx.execute("INSERT INTO facts (name, value) VALUES ('bad', '1')")
        raise ValueError("no")

    results = await asyncio.gather(
        metadata.transact(set_fact("a", "1")),
        metadata.transact(fail),
        metadata.transact(set_fact("b", "2")),
        return_exceptions=True,
    )
    assert isinstance(results[1], ValueError)
    assert await metadata.read(facts) == {"a": "1", "b": "2"}
    other = await world.hold()
    assert await other.read(facts) == {"a": "1", "b": "2"}
    await metadata.close()
    await other.close()


@virtual
async def test_a_deposed_holder_writes_nothing_and_reads_nothing(world: World) -> None:
    old = await world.hold()
    await old.transact(set_fact("a", "1"))
    new = await world.hold()
    with pytest.raises(Fenced):
        await old.read(facts)
    with pytest.raises(Fenced):
        await old.transact(set_fact("a", "2"))
    assert await new.read(facts) == {"a": "1"}
    await new.close()
    await old.close()


@virtual
async def test_a_deposed_holder_that_writes_first_finds_its_number_taken(world: World) -> None:
    old = await world.hold()
    new = await world.hold()
    with pytest.raises(Fenced):
        await old.transact(set_fact("a", "2"))
    assert await new.read(facts) == {}
    await new.close()
    await old.close()


@virtual
async def test_one_of_two_that_take_over_at_once_wins(world: World) -> None:
    first, second = await world.open(), await world.open()
    results = await asyncio.gather(
        first.acquire_fencing_epoch(), second.acquire_fencing_epoch(), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["MetadataBusy", "int"]
    await first.close()
    await second.close()


@virtual
async def test_an_unknown_outcome_is_settled_by_the_same_bytes(world: World) -> None:
    """Whether the put that nobody answered took effect or not, the transaction is there once and reported once."""
    for when in ("before", "after"):
        store = world.store()
        metadata = await world.open(store=store)
        await metadata.acquire_fencing_epoch()
        setattr(store, when, failing(StoreTimeout("no answer")))
        assert await metadata.transact(set_fact("when", when)) == 1
        assert await metadata.read(facts) == {"when": when}
        await metadata.close()
        other = await world.hold()
        assert await other.read(facts) == {"when": when}
        await other.close()


@virtual
async def test_while_nobody_knows_the_outcome_another_may_decide_it(world: World) -> None:
    """The put never took effect, and somebody has taken over: the transaction fails, and is nowhere."""
    store = world.store()
    metadata = await world.open(store=store)
    await metadata.acquire_fencing_epoch()
    others = []

    async def lose_it() -> None:
        store.before = None
        others.append(await world.hold())
        raise StoreTimeout("no answer")

    store.before = lose_it
    with pytest.raises(Fenced):
        await metadata.transact(set_fact("a", "1"))
    assert await others[0].read(facts) == {}
    await others[0].close()
    await metadata.close()


@virtual
async def test_what_is_planned_is_stored_however_often_the_store_refuses_it(world: World) -> None:
    store = world.store()
    metadata = await world.open(store=store)
    await metadata.acquire_fencing_epoch()
    store.before = failing(StoreUnavailable("away"))
    with pytest.raises(MetadataUnavailable):
        await metadata.transact(set_fact("a", "1"))
    with pytest.raises(MetadataError, match="cannot be stored now"):
        await metadata.plan(set_fact("b", "2"))  # nothing is planned on top of what may fail again
    await metadata.progress.wait_for(1)
    await metadata.transact(set_fact("c", "3"))
    assert await metadata.read(facts) == {"a": "1", "c": "3"}
    other = await world.hold()
    assert await other.read(facts) == {"a": "1", "c": "3"}
    await other.close()
    await metadata.close()


@virtual
async def test_a_put_that_hangs_is_sent_again_before_a_standby_takes_over(world: World) -> None:
    store = world.store()
    metadata = await world.open(store=store)
    await metadata.acquire_fencing_epoch()
    standby = await world.open()
    hung: list[None] = []

    async def hang_once() -> None:
        if not hung:
            hung.append(None)
            await asyncio.Event().wait()

    store.before = hang_once
    waiting = asyncio.create_task(standby.wait_vacant(patient=True, silent_s=3 * HUNG_S))
    await metadata.transact(set_fact("a", "1"))
    assert hung
    await world.clock.sleep(10 * HUNG_S)
    assert not waiting.done()
    waiting.cancel()
    await standby.close()
    await metadata.close()


@virtual
async def test_a_void_delta_is_skipped_by_everyone(world: World) -> None:
    """What a deposed writer still had on its way: it names a delta that never counted."""
    holder = await world.hold()
    await holder.transact(set_fact("a", "1"))
    number = holder.position.number + 1
    void = Delta(number, b"x" * 16, DeltaKind.CHANGES, 0, newest_schema(), "a ghost", b"not even a changeset")
    await world.store().put(delta_key(number), encode_delta(void, b"y" * 16))
    assert await holder.read(facts) == {"a": "1"}
    await holder.transact(set_fact("a", "2"))
    assert holder.position.number == number + 1
    other = await world.hold()
    assert await other.read(facts) == {"a": "2"}
    await holder.close()
    await other.close()


@virtual
async def test_snapshots_bound_what_a_start_reads(world: World) -> None:
    metadata = await world.hold()
    for number in range(20):
        await metadata.transact(set_fact(str(number), "x"))
    await metadata.close()
    snapshots = [key for key in world.bucket.keys if key.startswith("metadata/snapshot/")]
    assert snapshots
    newest = int(snapshots[-1].rpartition("/")[2])
    await world.store().delete([delta_key(number) for number in range(1, newest)])  # a start needs none of them
    other = await world.hold()
    assert len(await other.read(facts)) == 20
    await other.close()


@virtual
async def test_a_damaged_snapshot_is_passed_over_for_an_older_one(world: World) -> None:
    metadata = await world.hold()
    for number in range(20):
        await metadata.transact(set_fact(str(number), "x"))
    await metadata.close()
    snapshots = [key for key in world.bucket.keys if key.startswith("metadata/snapshot/")]
    assert len(snapshots) > 1
    blob = await world.store().get(snapshots[-1])
    await world.store().put(snapshots[-1], bytes(blob.data)[:-7], overwrite=True)
    other = await world.hold()
    assert len(await other.read(facts)) == 20
    await other.close()


@virtual
async def test_without_a_snapshot_that_can_be_read_the_whole_log_is(world: World) -> None:
    metadata = await world.hold()
    for number in range(12):
        await metadata.transact(set_fact(str(number), "x"))
    await metadata.close()
    snapshots = [key for key in world.bucket.keys if key.startswith("metadata/snapshot/")]
    for key in snapshots:
        await world.store().put(key, b"something else", overwrite=True)
    other = await world.hold()
    assert len(await other.read(facts)) == 12
    await other.close()
    await world.store().delete([delta_key(1)])
    with pytest.raises(MetadataDamaged):
        await world.open()


@virtual
async def test_what_is_not_a_snapshot_is_passed_over(world: World) -> None:
    metadata = await world.hold()
    await world.store().put("metadata/snapshot/readme", b"do not touch")
    for number in range(12):
        await metadata.transact(set_fact(str(number), "x"))
    await metadata.close()
    other = await world.hold()
    assert len(await other.read(facts)) == 12
    await other.close()


@virtual
async def test_the_metadata_of_a_file_is_never_taken_for_an_old_image(world: World) -> None:
    """An image is removed and made again. Whoever gives the path of a metadata file by mistake must not lose it."""
    path = world.folder / "metadata.db"
    metadata = await open_metadata(f"sqlite://{path}")
    await metadata.acquire_fencing_epoch()
    await metadata.transact(set_fact("a", "1"))
    await metadata.close()
    with pytest.raises(InvalidSetting, match="not an image"):
        await world.open("metadata.db")
    again = await open_metadata(f"sqlite://{path}")
    assert await again.peek(facts) == {"a": "1"}
    await again.close()


@virtual
async def test_a_standby_asks_for_one_object_at_a_time_while_nothing_happens(world: World) -> None:
    await (await world.hold("first"))._tasks.cancel_all()
    store = world.store()
    standby = await world.open("standby", store=store)
    inner_get, keys = store.get, []

    async def get(key: str) -> Blob:
        keys.append(key)
        return await inner_get(key)

    store.get = get  # type: ignore[method-assign]
    await standby.wait_vacant(patient=True)
    assert len(keys) <= bucket_module.VACANT_AFTER_S / FOLLOW_INTERVAL_S + 2
    await standby.close()


@virtual
async def test_old_deltas_go_in_order_and_late(world: World) -> None:
    metadata = await world.hold()

    async def write(count: int) -> None:
        for number in range(count):
            await metadata.transact(set_fact(str(number), "x"))
        if metadata._snapshots.running is not None:
            await metadata._snapshots.running

    await write(20)
    assert world.numbers()[0] == 1  # all are young
    await metadata.close()
    await world.clock.sleep(TRIM_AFTER_S + 1)
    metadata = await world.hold()  # the age of a snapshot counts across restarts
    await write(12)
    left = world.numbers()
    assert left[0] > 1
    assert left == list(range(left[0], left[-1] + 1))
    assert snapshot_key(left[0]) in world.bucket.keys
    other = await world.hold()
    assert len(await other.read(facts)) == 20
    await other.close()
    await metadata.close()


@virtual
async def test_an_answer_that_took_long_counts_only_if_the_delta_before_is_still_there(world: World) -> None:
    """While its put was on its way others went on and trimmed: its number was free again, and proves nothing."""
    store = world.store()
    slow = await world.open(store=store)
    await slow.acquire_fencing_epoch()
    await slow.transact(set_fact("a", "1"))

    async def trim_late() -> None:
        await world.clock.sleep(LATE_S + 1)
        world.delete_deltas()
        answers.set()

    answers = asyncio.Event()
    store.before = wait_for(answers)
    trimming = asyncio.create_task(trim_late())
    with pytest.raises(Fenced):
        await slow.transact(set_fact("a", "2"))
    await trimming
    await slow.close()


@virtual
async def test_a_reader_that_slept_past_the_trimming_does_not_take_absence_for_the_end(world: World) -> None:
    sleeper = await world.hold()
    await sleeper.transact(set_fact("a", "1"))
    await sleeper._tasks.cancel_all()  # it sleeps: no heartbeat
    world.delete_deltas()
    await world.clock.sleep(LATE_S + 1)
    with pytest.raises(Fenced):
        await sleeper.read(facts)
    await sleeper.close()


@virtual
async def test_a_writer_that_slept_past_the_trimming_does_not_take_a_free_number_for_its_own(world: World) -> None:
    """Others have gone on and deleted the delta that took its number, so that creating it succeeds once more."""
    sleeper = await world.hold()
    await sleeper.transact(set_fact("a", "1"))
    sleeper._tasks._tasks.popitem()[0].cancel()  # no heartbeat: the whole process sleeps
    world.delete_deltas()
    await world.clock.sleep(LATE_S + 1)
    with pytest.raises(Fenced):
        await sleeper.transact(set_fact("a", "2"))
    assert world.numbers() == []
    await sleeper.close()


@virtual
async def test_a_standby_that_slept_while_it_read_does_not_take_the_trimmed_log_for_its_end(world: World) -> None:
    """It has read a delta before it slept, and looks for the next one when that is deleted."""
    holder = await world.hold()
    store = world.store()
    standby = await world.open("standby", store=store)
    await holder.transact(set_fact("a", "1"))
    next_key = delta_key(holder.position.number + 1)
    inner_get = store.get

    async def get(key: str) -> Blob:
        if key == next_key and store.is_sleepy:
            store.is_sleepy = False
            for number in range(12):  # with a snapshot
                await holder.transact(set_fact("b", str(number)))
            await world.clock.sleep(LATE_S + 1)
            newest = max(int(key.rpartition("/")[2]) for key in world.bucket.keys if "snapshot" in key)
            await world.store().delete([delta_key(number) for number in range(1, newest)])
        return await inner_get(key)

    store.is_sleepy = True
    store.get = get  # type: ignore[method-assign]
    with pytest.raises(MetadataBusy):
        await standby.wait_vacant(patient=False)
    assert standby.position == holder.position
    await standby.close()
    await holder.close()


@virtual
async def test_a_delta_that_was_sent_before_a_read_proves_nothing(world: World) -> None:
    """It is stored, which its writer does not know yet, and another has gone on behind it."""
    store = world.store()
    old = await world.open(store=store)
    await old.acquire_fencing_epoch()
    answers = asyncio.Event()
    stored = asyncio.Event()

    async def no_answer() -> None:
        stored.set()
        await answers.wait()

    store.after = no_answer
    writing = asyncio.create_task(old.transact(set_fact("a", "1")))
    await stored.wait()
    new = await world.hold()
    await new.transact(set_fact("a", "2"))
    with pytest.raises(Fenced):
        await old.read(facts)
    answers.set()
    with pytest.raises(Fenced):  # it counts, but nobody is told anything any more
        await writing
    await old.close()
    await new.close()


@virtual
async def test_reads_are_proven_by_what_is_sent_after_them(world: World) -> None:
    """Reads do not run after the end of a log that grows as fast as they look."""
    metadata = await world.hold()
    is_over = False

    async def write() -> None:
        while not is_over:
            await metadata.transact(set_fact("a", "1"))

    writing = asyncio.create_task(write())
    for _ in range(20):
        async with asyncio.timeout(1.0):
            await metadata.read(facts)
    is_over = True
    await writing
    await metadata.close()


@virtual
async def test_a_second_process_is_refused_while_the_first_one_lives(world: World) -> None:
    first = await world.hold("first")
    second = await world.open("second")
    with pytest.raises(MetadataBusy, match="first"):
        await second.wait_vacant(patient=False)
    await second.close()
    await first.close()


@virtual
async def test_a_standby_takes_over_at_once_from_one_that_resigned(world: World) -> None:
    first = await world.hold("first")
    standby = await world.open("standby")
    waiting = asyncio.create_task(standby.wait_vacant(patient=True))
    await world.clock.sleep(20.0)
    assert not waiting.done()  # it has seen the heartbeats
    await first.close()
    began_s = world.clock.boot_s()
    await waiting
    assert world.clock.boot_s() - began_s < 2 * FOLLOW_INTERVAL_S
    assert await standby.acquire_fencing_epoch() == 2
    await standby.close()


@virtual
async def test_a_standby_takes_over_from_one_that_is_silent(world: World) -> None:
    first = await world.hold("first")
    await first._tasks.cancel_all()  # as if it had died
    standby = await world.open("standby")
    began_s = world.clock.boot_s()
    await standby.wait_vacant(patient=True)
    waited_s = world.clock.boot_s() - began_s
    assert bucket_module.VACANT_AFTER_S <= waited_s < bucket_module.VACANT_AFTER_S + 2.0
    await standby.acquire_fencing_epoch()
    with pytest.raises(Fenced):
        await first.read(facts)
    await standby.close()
    await first.close()


@virtual
async def test_a_standby_outlives_a_store_that_is_away_while_the_image_is_made_again(world: World) -> None:
    holder = await world.hold("first")
    for number in range(12):  # with a snapshot
        await holder.transact(set_fact("a", str(number)))
    await holder._tasks.cancel_all()
    store = world.store()
    standby = await world.open("standby", store=store)
    inner_list = store.list
    failures = [StoreUnavailable("away"), StoreUnavailable("away")]

    async def list_(prefix: str, **options: Any) -> ListPage:
        if failures:
            raise failures.pop()
        return await inner_list(prefix, **options)

    store.list = list_  # type: ignore[method-assign]
    standby._position = replace(standby.position, nonce=b"x" * 16, is_vacant=False)  # the log has moved on
    standby._known_s = -math.inf
    await standby.wait_vacant(patient=True)
    assert standby.position == holder.position
    assert failures == []
    await standby.close()


@virtual
async def test_what_is_planned_ahead_of_the_store_has_a_limit(world: World) -> None:
    store = world.store()
    metadata = await world.open(store=store)
    await metadata.acquire_fencing_epoch()
    answers = asyncio.Event()

    store.before = wait_for(answers)
    for number in range(CALLS_AHEAD_MAX):
        await metadata.plan(set_fact(str(number), "x"))
    over = [asyncio.create_task(metadata.plan(set_fact(name, "x"))) for name in ("gone", "late")]
    await world.clock.sleep(1.0)
    assert not over[1].done()
    over[0].cancel()  # it has not begun, so it is not made
    store.before = None
    answers.set()
    await over[1]
    found = await metadata.read(facts)
    assert len(found) == CALLS_AHEAD_MAX + 1
    assert "late" in found
    await metadata.close()


@virtual
async def test_what_was_planned_and_not_stored_is_not_adopted(world: World) -> None:
    """A holder dies with an image that is ahead of the log. Whoever finds the image makes it again."""
    store = world.store()
    metadata = await world.open("mine", store=store)
    await metadata.acquire_fencing_epoch()
    await metadata.transact(set_fact("told", "1"))
    store.before = wait_for(asyncio.Event())
    await metadata.plan(set_fact("planned", "2"))
    assert await metadata.read(facts) == {"told": "1", "planned": "2"}
    await metadata._tasks.cancel_all()
    metadata.let_go()
    again = await world.hold("mine")
    assert await again.read(facts) == {"told": "1"}
    await again.close()


@virtual
async def test_a_snapshot_holds_nothing_that_is_not_stored(world: World) -> None:
    store = world.store()
    metadata = await world.open(store=store)
    await metadata.acquire_fencing_epoch()
    for number in range(20):
        await metadata.plan(set_fact("a", str(number)))
        if number % 3 == 0:
            await metadata.durable()
    await metadata.durable()
    while metadata._snapshots.running is not None:
        await world.clock.sleep(0.1)
    numbers = await metadata._deltas.snapshots()
    assert numbers
    for number in numbers:
        load_snapshot(await metadata._deltas.read_snapshot(number), world.folder / "snapshot")
        image = Image(world.folder / "snapshot")
        assert image.position.counted_number == number
        replayed = Image(world.folder / f"replayed-{number}")
        position = Position()
        async for delta, position in metadata._deltas.read_behind(Position()):
            if position.counted_number <= number:
                replayed.apply([(delta, position)])
        assert image.read(facts) == replayed.read(facts)
        image.close()
        replayed.close()
    await metadata.close()


@virtual
async def test_who_waits_for_a_put_without_an_answer_is_answered_at_the_end(world: World) -> None:
    store = world.store()
    metadata = await world.open(store=store)
    await metadata.acquire_fencing_epoch()

    async def never() -> None:
        await asyncio.Event().wait()

    store.before = never
    calls = [asyncio.create_task(metadata.transact(set_fact(str(number), "x"))) for number in range(2)]
    await world.clock.sleep(0.1)
    calls.append(asyncio.create_task(metadata.transact(set_fact("later", "x"))))
    await metadata.close()
    async with asyncio.timeout(10.0):
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(result) for result in results] == [MetadataUnavailable] * 3


@virtual
async def test_a_holder_that_cannot_trust_what_it_finds_ends(world: World) -> None:
    """Whoever is told that it is fenced stops the process; any other error would leave it there, of no use."""
    metadata = await world.hold()
    await world.store().put(delta_key(metadata.position.number + 1), b"something else")
    with pytest.raises(Fenced, match="not a delta"):
        await metadata.transact(set_fact("a", "1"))
    with pytest.raises(Fenced):
        await metadata.read(facts)
    await metadata.close()


@virtual
async def test_a_holder_whose_disk_is_full_notices_that_it_was_deposed(world: World) -> None:
    """Its heartbeats need no disk, and find their number taken."""
    metadata = await world.hold()

    def fail(*_: object) -> None:
        raise MetadataFull("no room left")

    metadata._current_image().execute = fail  # type: ignore[assignment, method-assign]
    metadata._current_image().stamp = fail  # type: ignore[assignment, method-assign]
    await world.clock.sleep(2 * HEARTBEAT_S)
    assert not metadata.lost.is_set()
    other = await world.hold()
    await world.clock.sleep(2 * HEARTBEAT_S)
    assert metadata.lost.is_set()
    await other.close()
    await metadata.close()


@virtual
async def test_an_image_that_is_not_what_it_says_is_made_again(world: World) -> None:
    metadata = await world.hold("mine")
    await metadata.transact(set_fact("a", "1"))
    await metadata.close()
    with apsw.Connection(str(world.folder / "mine")) as connection:
        connection.execute("DELETE FROM facts")
    other = await world.hold("other")
    await other.transact(set_fact("a", "2"))
    await other.close()
    again = await world.hold("mine")
    assert await again.read(facts) == {"a": "2"}
    await again.close()


@virtual
async def test_a_standby_waits_while_the_store_is_away(world: World) -> None:
    """Then nobody can tell whether the holder is silent, or cannot be heard."""
    await (await world.hold("first"))._tasks.cancel_all()
    store = world.store()
    standby = await world.open("standby", store=store)
    store.is_away = True
    waiting = asyncio.create_task(standby.wait_vacant(patient=True))
    await world.clock.sleep(20.0)
    assert not waiting.done()
    store.is_away = False
    await waiting
    await standby.close()


@virtual
async def test_damaged_deltas_are_refused(world: World) -> None:
    metadata = await world.hold()
    await metadata.transact(set_fact("a", "1"))
    await metadata.close()
    key = delta_key(2)
    data = bytes((await world.store().get(key)).data)
    for broken in (data[:10], data[:-1] + b"?", b"something else", data[:30] + b"x" + data[31:]):
        with pytest.raises(MetadataDamaged):
            decode_delta(broken, 2)
    with pytest.raises(MetadataDamaged):
        decode_delta(data, 3)
    await world.store().put(key, data[:-1] + b"?", overwrite=True)
    with pytest.raises(MetadataDamaged):
        await world.open()


@virtual
async def test_every_table_is_in_the_deltas(world: World) -> None:
    """SQLite's session extension passes over tables without a primary key, without a word."""
    metadata = await world.hold()

    def without_key(tx: Transaction) -> set[str]:
        tables = tx.query("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        return {
            str(name) for (name,) in tables if not any(column[5] for column in tx.query(f"PRAGMA table_info({name})"))
        }

    assert await metadata.read(without_key) == {"fencing", "schema_version"}
    await metadata.close()


@virtual
async def test_a_control_plane_that_nobody_asks_notices_that_it_was_deposed(world: World) -> None:
    """What it knows by heart is out of date from then on, and answered without a look at the metadata."""
    metadata = await world.open()
    service = ControlService(metadata, world.store(), world.clock, SeededEntropy(1), ControlSettings())
    await service.start()
    other = await world.hold()
    await world.clock.sleep(2 * HEARTBEAT_S)
    assert service.fenced.is_set()
    with pytest.raises(Fenced):
        await service.list_jobs(ListJobs())
    await service.close()
    await other.close()


@virtual
async def test_a_control_plane_stops_though_the_store_does_not_answer(world: World) -> None:
    store = world.store()
    metadata = await world.open(store=store)
    service = ControlService(metadata, world.store(), world.clock, SeededEntropy(1), ControlSettings())
    await service.start()
    topic = await create_topic(service)

    async def never() -> None:
        await asyncio.Event().wait()

    store.before = never
    calls = [
        asyncio.create_task(create_topic(service, "other")),
        asyncio.create_task(commit(service, topic, [batch()])),
    ]
    await world.clock.sleep(0.1)
    async with asyncio.timeout(60.0):
        await service.close()
        results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, BraidError) for result in results)


async def test_a_control_plane_goes_on_from_the_bucket_alone(tmp_path: Path) -> None:
    clock, bucket = FakeClock(sleepers_wait=True), MemoryBucket()
    first = await start_plane(f"bucket://{tmp_path}/first", clock=clock, bucket=bucket)
    topic = await create_topic(first.service)
    assert await commit(first.service, topic, [batch(3)]) == [(0, 0, False)]
    second = await start_plane(f"bucket://{tmp_path}/second", clock=clock, bucket=bucket)
    assert await commit(second.service, topic, [batch(2)]) == [(0, 3, False)]
    with pytest.raises(Fenced):
        await commit(first.service, topic, [batch()])
    await first.service.close()
    await second.service.close()


def test_what_a_killed_process_left_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, alive = TemporaryFolder(), TemporaryFolder()
    other = tmp_path / "braidlog-metadata-of-another"
    other.mkdir()
    killed._lock.close()  # as the operating system does
    last = TemporaryFolder()
    assert not killed.path.exists()
    assert alive.path.exists()
    assert other.exists()
    alive.close()
    last.close()
    assert list(tmp_path.iterdir()) == [other]


async def test_the_url_says_where_the_image_is(tmp_path: Path) -> None:
    clock = FakeClock(sleepers_wait=True)
    store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    around = BucketParts(store, clock, SeededEntropy(1), "me")
    for url in ("bucket://", f"bucket://{tmp_path}/image"):
        metadata = await open_metadata(url, around)
        await metadata.acquire_fencing_epoch()
        await metadata.close()
    assert (tmp_path / "image").exists()
