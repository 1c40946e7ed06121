"""What only the file store has: durability, leftovers of crashes, several processes, full disks."""

import asyncio
import errno
import mmap
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.fakes import FakeClock

from braidlog.objects import local
from braidlog.objects.files import DIRECT_BYTES_MIN
from braidlog.objects.keys import InvalidKey
from braidlog.objects.local import LEFTOVER_AGE_MS, OWN_FOLDER, LocalStore
from braidlog.objects.store import (
    AlreadyExists,
    Conflict,
    NotFound,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreTimeout,
    TornRead,
)
from braidlog.runtime.entropy import SeededEntropy
from braidlog.writing.arena import Arena


@pytest.fixture
async def store(tmp_path: Path, clock: FakeClock, entropy: SeededEntropy) -> AsyncIterator[LocalStore]:
    store = LocalStore(tmp_path / "store", clock=clock, entropy=entropy)
    yield store
    await store.close()


class PowerLoss(BaseException):
    """The machine stops here."""


def record_calls(monkeypatch: pytest.MonkeyPatch, calls: list[str], *, fail_at: int = 10**9) -> None:
    """Note the calls that matter to durability, and stop at one of them."""

    def watch(module: object, name: str) -> None:
        real: Callable[..., object] = getattr(module, name)

        def watched(*arguments: object, **options: object) -> object:
            if len(calls) >= fail_at:
                raise PowerLoss
            what = arguments[0]
            if isinstance(what, int):
                what = os.readlink(f"/proc/self/fd/{what}")
            kind = OWN_FOLDER if OWN_FOLDER in str(what) and name != "_sync_folder" else Path(str(what)).name
            calls.append(f"{name} {kind}")
            return real(*arguments, **options)

        monkeypatch.setattr(module, name, watched)

    for name in ["link", "rename", "write", "mkdir", "unlink"]:
        watch(local.os, name)
    for name in ["_sync", "_sync_folder"]:
        watch(local, name)


async def test_the_file_is_synced_before_it_has_its_name_and_the_folder_after(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a/first", b"x")
    calls: list[str] = []
    record_calls(monkeypatch, calls)
    await store.put("a/k", b"data")
    own = OWN_FOLDER
    assert calls == [f"write {own}", f"_sync {own}", f"link {own}", "_sync_folder a", f"unlink {own}"]
    calls.clear()
    await store.put("a/k", b"more", overwrite=True)
    assert calls == [f"write {own}", f"_sync {own}", f"rename {own}", "_sync_folder a"]
    calls.clear()
    with pytest.raises(AlreadyExists):
        await store.put("a/k", b"data")
    assert calls[-2:] == ["_sync_folder a", f"unlink {own}"]


async def test_new_folders_are_synced_into_the_one_above(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("first", b"x")
    calls: list[str] = []
    record_calls(monkeypatch, calls)
    await store.put("a/b/k", b"data")
    assert [call for call in calls if OWN_FOLDER not in call] == [
        "mkdir a",
        "_sync_folder store",
        "mkdir b",
        "_sync_folder a",
        "_sync_folder b",
    ]


async def test_a_crash_at_any_moment_leaves_nothing_or_the_whole_object(
    tmp_path: Path, clock: FakeClock, entropy: SeededEntropy
) -> None:
    seen = set()
    for moment in range(12):
        root = tmp_path / str(moment)
        first = LocalStore(root, clock=clock, entropy=entropy.fork(f"a{moment}"))
        calls: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            record_calls(patch, calls, fail_at=moment)
            try:
                await first.put("a/k", b"whole object")
                seen.add("acknowledged")
            except PowerLoss:
                pass
        await first.close()
        second = LocalStore(root, clock=clock, entropy=entropy.fork(f"b{moment}"))
        listed = [meta.key for meta in (await second.list("")).objects]
        if listed:
            assert bytes((await second.get("a/k")).data) == b"whole object"
            seen.add("whole")
        else:
            await second.put("a/k", b"written after the crash")
            seen.add("nothing")
        assert [meta.key for meta in (await second.list("")).objects] == ["a/k"]
        await second.close()
    assert seen == {"acknowledged", "whole", "nothing"}


async def test_leftovers_are_neither_listed_nor_in_the_way(store: LocalStore, tmp_path: Path) -> None:
    await store.put("a/k", b"x")
    own = tmp_path / "store" / OWN_FOLDER
    for number in range(20):
        (own / f"deadbeef-{number}").write_bytes(b"half an obj")
    assert [meta.key for meta in (await store.list("")).objects] == ["a/k"]
    assert (await store.list(".braid")).objects == ()
    await store.put("a/l", b"y")
    with pytest.raises(InvalidKey):
        await store.get(f"{OWN_FOLDER}/deadbeef-1")
    await store.put(f"{OWN_FOLDER}x", b"only the folder itself is ours")


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "store" / OWN_FOLDER
    folder.mkdir(parents=True)
    return folder


def leave(path: Path, clock: FakeClock, age_ms: int) -> Path:
    path.write_bytes(b"half an obj")
    modified_ns = (clock.wall_ms() - age_ms) * 1_000_000
    os.utime(path, ns=(modified_ns, modified_ns))
    return path


async def test_leftovers_are_removed_when_they_are_old(
    tmp_path: Path, own_folder: Path, clock: FakeClock, entropy: SeededEntropy
) -> None:
    old = leave(own_folder / f"{'0a' * 8}-7", clock, LEFTOVER_AGE_MS + 1)
    young = leave(own_folder / f"{'0b' * 8}-1", clock, LEFTOVER_AGE_MS - 1)
    lock = leave(own_folder / "lock", clock, 10 * LEFTOVER_AGE_MS)
    store = LocalStore(tmp_path / "store", clock=clock, entropy=entropy)
    await store.list("")
    assert old.exists()  # whoever only reads removes nothing
    await store.put("k", b"x")
    await store.close()
    assert sorted(own_folder.iterdir()) == sorted([young, lock])


async def test_a_store_that_is_open_for_long_removes_what_has_become_old(
    tmp_path: Path, own_folder: Path, clock: FakeClock, entropy: SeededEntropy
) -> None:
    store = LocalStore(tmp_path / "store", clock=clock, entropy=entropy)
    await store.put("k", b"x")
    leave(own_folder / f"{'0a' * 8}-7", clock, 0)
    clock.advance(LEFTOVER_AGE_MS / 1000 + 1)
    await store.put("l", b"x")
    await store.close()
    assert os.listdir(own_folder) == []


@pytest.mark.parametrize("overwrite", [False, True])
async def test_a_temporary_file_in_use_is_never_a_leftover(
    store: LocalStore, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    """Its writer is stopped for days just before it gives the file its name."""
    reached, go_on = threading.Event(), threading.Event()
    name = "rename" if overwrite else "link"
    really_name: Callable[[str, str], None] = getattr(os, name)

    def stopped(temporary: str, path: str) -> None:
        if path.endswith("/slow"):
            reached.set()
            assert go_on.wait(60.0)
        really_name(temporary, path)

    monkeypatch.setattr(local.os, name, stopped)
    put = asyncio.create_task(store.put("slow", b"x", overwrite=overwrite))
    await asyncio.to_thread(reached.wait, 60.0)
    clock.advance(3 * LEFTOVER_AGE_MS / 1000)
    other = LocalStore(tmp_path / "store", clock=clock, entropy=SeededEntropy("other"))
    await other.put("k", b"x")
    await other.close()
    go_on.set()
    await put
    assert bytes((await store.get("slow")).data) == b"x"


async def test_leftovers_that_cannot_be_removed_are_no_error(
    tmp_path: Path, own_folder: Path, clock: FakeClock, entropy: SeededEntropy
) -> None:
    (own_folder / f"{'0a' * 8}-7").mkdir()
    os.utime(own_folder / f"{'0a' * 8}-7", ns=(0, 0))
    removable = leave(own_folder / f"{'0b' * 8}-1", clock, LEFTOVER_AGE_MS + 1)
    store = LocalStore(tmp_path / "store", clock=clock, entropy=entropy)
    await store.put("k", b"x")
    await store.close()
    assert not removable.exists()


async def test_nothing_is_left_after_failed_puts(store: LocalStore, tmp_path: Path) -> None:
    etag = await store.put("k", b"x")
    with pytest.raises(AlreadyExists):
        await store.put("k", b"y")
    with pytest.raises(Conflict):
        await store.update("k", b"y", etag="wrong")
    assert etag is not None
    await store.update("k", b"y", etag=etag)
    assert os.listdir(tmp_path / "store" / OWN_FOLDER) == ["lock"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk(store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    await store.put("first", b"x")

    def full(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    for size in [10, 1 << 20]:
        with monkeypatch.context() as patch:
            patch.setattr(local.os, "write", full)
            with pytest.raises(StoreFull) as caught:
                await store.put("k", bytes(size))
        assert str(tmp_path) in caught.value.help
        assert caught.value.retriable
    assert [meta.key for meta in (await store.list("")).objects] == ["first"]
    assert os.listdir(tmp_path / "store" / OWN_FOLDER) == []
    await store.put("k", b"there is room again")


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EACCES, StoreDenied), (errno.EROFS, StoreDenied), (errno.EIO, StoreError)]
)
async def test_other_failures_are_typed(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[StoreError]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(local, "_sync", fail)
    with pytest.raises(kind):
        await store.put("k", b"x")


async def test_a_name_that_cannot_be_synced_leaves_the_outcome_open(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = await store.put("first", b"x")
    assert etag is not None

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "bad disk")

    monkeypatch.setattr(local, "_sync_folder", fail)
    for write in [store.put("k", b"x"), store.update("first", b"y", etag=etag)]:
        with pytest.raises(StoreTimeout):
            await write


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 262_143, 262_144, 262_145, 1 << 20, (1 << 20) + 4097, 5_000_001])
async def test_all_sizes_come_back(store: LocalStore, entropy: SeededEntropy, size: int) -> None:
    data = entropy.token(size)
    await store.put("k", data)
    assert (await store.get("k")).data == data
    await store.put("k", memoryview(bytearray(data))[: size // 2], overwrite=True)
    assert (await store.get("k")).data == data[: size // 2]


async def test_aligned_memory_is_written_without_a_copy(store: LocalStore, entropy: SeededEntropy) -> None:
    arena = mmap.mmap(-1, 1 << 21)
    arena[:] = entropy.token(1 << 21)
    for size in [1 << 20, (1 << 20) + 100]:
        await store.put(f"k{size}", memoryview(arena)[4096 : 4096 + size])
        assert (await store.get(f"k{size}")).data == arena[4096 : 4096 + size]


async def test_a_file_system_without_direct_writes(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    refused = []

    def write(fd: int, data: memoryview) -> int:
        flags = local.fcntl.fcntl(fd, local.fcntl.F_GETFL)
        if flags & os.O_DIRECT:
            refused.append(fd)
            raise OSError(errno.EINVAL, "no direct writes here")
        return real(fd, data[:100_000])

    monkeypatch.setattr(local.os, "write", write)
    data = bytes(range(256)) * 4096
    await store.put("k", data)
    await store.put("l", data)
    assert (await store.get("k")).data == data
    assert (await store.get("l")).data == data
    assert len(refused) == 2  # by the caller's memory, then by ours; and never again


async def test_an_object_cannot_be_a_folder(store: LocalStore) -> None:
    await store.put("a/b", b"x")
    for overwrite in [False, True]:
        with pytest.raises(InvalidKey):
            await store.put("a", b"x", overwrite=overwrite)
        with pytest.raises(InvalidKey):
            await store.put("a/b/c", b"x", overwrite=overwrite)
        with pytest.raises(InvalidKey):
            await store.put("a/b/c/d", b"x", overwrite=overwrite)
    with pytest.raises(InvalidKey):
        await store.put("n" * 300, b"x")
    await store.delete(["a", "a/b/c"])
    assert [meta.key for meta in (await store.list("")).objects] == ["a/b"]


async def test_empty_folders_go_with_their_last_object(store: LocalStore, tmp_path: Path) -> None:
    await store.put("data/1/0000000001/a", b"x")
    await store.put("data/1/0000000002/a", b"x")
    await store.delete(["data/1/0000000001/a"])
    assert os.listdir(tmp_path / "store" / "data" / "1") == ["0000000002"]
    await store.delete(["data/1/0000000002/a"])
    assert os.listdir(tmp_path / "store") == [OWN_FOLDER]
    await store.put("data/1/0000000001/a", b"again")


async def test_a_folder_removed_by_another_process_is_made_again(
    store: LocalStore, tmp_path: Path, clock: FakeClock
) -> None:
    other = LocalStore(tmp_path / "store", clock=clock, entropy=SeededEntropy("other"))
    for _ in range(3):
        await store.put("a/b/k", b"x")
        await other.delete(["a/b/k"])
        assert not (tmp_path / "store" / "a").exists()
    etag = await store.put("a/b/k", b"x", overwrite=True)
    assert etag is not None
    await other.update("a/b/k", b"y", etag=etag)
    await other.close()


async def test_puts_and_deletes_race_for_a_folder(store: LocalStore, tmp_path: Path, clock: FakeClock) -> None:
    other = LocalStore(tmp_path / "store", clock=clock, entropy=SeededEntropy("other"))

    async def come_and_go(which: LocalStore, name: str) -> None:
        for number in range(15):
            await which.put(f"a/b/{name}-{number}", b"x")
            await which.delete([f"a/b/{name}-{number}"])

    await asyncio.gather(*(come_and_go(which, f"{i}") for i, which in enumerate([store, other, store, other])))
    assert (await store.list("")).objects == ()
    await other.close()


async def test_two_processes_cannot_both_update(store: LocalStore, tmp_path: Path, clock: FakeClock) -> None:
    """The second store stands for the second process: they share the folder, and nothing in memory."""
    other = LocalStore(tmp_path / "store", clock=clock, entropy=SeededEntropy("other"))
    await store.put("counter", b"0")

    async def count(which: LocalStore) -> None:
        done = 0
        while done < 10:
            blob = await which.get("counter")
            assert blob.etag is not None
            try:
                await which.update("counter", str(int(bytes(blob.data)) + 1).encode(), etag=blob.etag)
                done += 1
            except Conflict:
                continue

    await asyncio.gather(count(store), count(other))
    assert bytes((await store.get("counter")).data) == b"20"
    await other.close()


async def test_versions_differ_even_when_the_clock_stands_still(store: LocalStore) -> None:
    etags = [await store.put("k", b"same size", overwrite=True) for _ in range(50)]
    assert len(set(etags)) == 50


async def test_the_time_of_an_object_is_the_clocks(store: LocalStore, clock: FakeClock) -> None:
    clock.advance(100)
    await store.put("k", b"x")
    assert (await store.head("k")).modified_ms == clock.wall_ms()


async def test_symbolic_links_are_not_followed_into_other_places(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    await store.put("k", b"x")
    (tmp_path / "store" / "link").symlink_to(outside)
    assert [meta.key for meta in (await store.list("")).objects if meta.key.startswith("link/")] == []


async def test_a_store_that_does_not_exist_yet_is_empty(tmp_path: Path, clock: FakeClock) -> None:
    store = LocalStore(tmp_path / "none" / "yet", clock=clock, entropy=SeededEntropy(1))
    assert (await store.list("")).objects == ()
    with pytest.raises(NotFound):
        await store.get("k")
    await store.delete(["k"])
    await store.put("k", b"x")
    await store.close()


async def test_a_range_can_be_read_in_the_callers_thread(store: LocalStore) -> None:
    await store.put("a/k", b"0123456789")
    for soon in (False, True):
        assert store.open_range("a/k", 2, 5, soon=soon).take() == b"234"
    assert store.open_range("a/k", 10, 10).take() == b""
    unread = store.open_range("a/k", 0, 1)
    unread.close()
    unread.close()
    with pytest.raises(NotFound):
        store.open_range("a/none", 0, 1)
    with pytest.raises(NotFound):
        store.open_range("a", 0, 1)
    with pytest.raises(TornRead):
        store.open_range("a/k", 5, 11)
    with pytest.raises(ValueError, match="range"):
        store.open_range("a/k", 5, 4)
    with pytest.raises(InvalidKey):
        store.open_range(f"{OWN_FOLDER}/lock", 0, 1)


@pytest.mark.parametrize("trouble", ["", "open", "read"])
async def test_large_ranges_are_read_past_the_page_cache_where_that_can_be(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    data = SeededEntropy(3).token(3 * DIRECT_BYTES_MIN + 777)
    await store.put("large", data)
    arena = Arena(free_bytes_max=0, region_bytes=4 << 20)
    really_open = os.open

    def open_buffered(path: str, flags: int, *more: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "not here")
        return really_open(path, flags, *more)

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "not aligned enough")

    if trouble == "open":
        monkeypatch.setattr(os, "open", open_buffered)
    elif trouble == "read":
        monkeypatch.setattr(os, "preadv", refuse)
    for start, end in [(0, len(data)), (1, len(data)), (4096, 4096 + DIRECT_BYTES_MIN), (5, 6), (777, len(data) - 1)]:
        found = store.open_range("large", start, end, memory=arena.take).take()
        assert found == data[start:end]
        is_direct = not trouble and end - start >= DIRECT_BYTES_MIN
        assert isinstance(found, memoryview) == is_direct


async def test_a_file_that_shrinks_while_it_is_read_is_torn(store: LocalStore) -> None:
    await store.put("large", bytes(3 * DIRECT_BYTES_MIN))
    arena = Arena(free_bytes_max=0, region_bytes=4 << 20)
    for left in (DIRECT_BYTES_MIN, DIRECT_BYTES_MIN + 5):
        opened = store.open_range("large", 10, 2 * DIRECT_BYTES_MIN + 10, memory=arena.take)
        os.truncate(store.url.removeprefix("file://") + "/large", left)
        with pytest.raises(TornRead):
            opened.take()
        os.truncate(store.url.removeprefix("file://") + "/large", 3 * DIRECT_BYTES_MIN)


@pytest.mark.parametrize("place", ["a file", "a file/below", "/proc/nowhere"])
async def test_a_root_that_can_be_no_folder(place: str, tmp_path: Path) -> None:
    (tmp_path / "a file").write_bytes(b"")
    store = LocalStore(tmp_path / place, clock=FakeClock(), entropy=SeededEntropy(1))
    with pytest.raises(StoreDenied, match="not a folder"):
        await store.put("key", b"data")
    with pytest.raises(NotFound):
        await store.get("key")
    await store.close()
