"""One behaviour for every store: memory, files, and a real S3 server."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from braidlog.objects.keys import InvalidKey
from braidlog.objects.open import open_store
from braidlog.objects.store import AlreadyExists, Conflict, NotFound, ObjectMeta, Store, TornRead
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy

MEBIBYTE = 1 << 20


@pytest.fixture(params=["memory", "file", "s3"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    urls = {"memory": lambda: "memory://", "file": lambda: f"file://{tmp_path}/store"}
    url = urls[request.param]() if request.param in urls else request.getfixturevalue("seaweed_url")
    store = open_store(url, clock=SystemClock(), entropy=SystemEntropy(), retry=None)
    yield store
    await store.close()


async def keys_of(store: Store, prefix: str, *, limit: int = 1000, after: str | None = None) -> list[str]:
    """All pages."""
    keys: list[str] = []
    while True:
        page = await store.list(prefix, after=after, limit=limit)
        assert len(page.objects) <= limit
        keys += [meta.key for meta in page.objects]
        if page.next_after is None:
            return keys
        after = page.next_after


async def test_what_is_put_can_be_read(store: Store) -> None:
    etag = await store.put("a/b", b"hello world")
    blob = await store.get("a/b")
    assert bytes(blob.data) == b"hello world"
    assert blob.etag == etag
    meta = await store.head("a/b")
    assert (meta.key, meta.size, meta.etag) == ("a/b", 11, etag)
    assert abs(meta.modified_ms - SystemClock().wall_ms()) < 60_000


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
async def test_any_kind_of_buffer_can_be_put(store: Store, kind: type) -> None:
    await store.put("k", kind(b"0123456789"))
    assert bytes((await store.get("k")).data) == b"0123456789"


async def test_a_slice_of_a_larger_buffer_can_be_put(store: Store) -> None:
    await store.put("k", memoryview(bytearray(b"0123456789"))[3:7])
    assert bytes((await store.get("k")).data) == b"3456"


async def test_put_is_create_only(store: Store) -> None:
    await store.put("k", b"first")
    with pytest.raises(AlreadyExists):
        await store.put("k", b"second")
    assert bytes((await store.get("k")).data) == b"first"


async def test_overwrite_replaces(store: Store) -> None:
    first = await store.put("k", b"first", overwrite=True)
    second = await store.put("k", b"second!", overwrite=True)
    assert first != second
    assert bytes((await store.get("k")).data) == b"second!"


async def test_of_concurrent_puts_exactly_one_wins(store: Store) -> None:
    for round_number in range(2):
        key = f"race/{round_number}"
        results = await asyncio.gather(
            *(store.put(key, f"writer {writer}".encode()) for writer in range(8)), return_exceptions=True
        )
        winners = [writer for writer, result in enumerate(results) if not isinstance(result, BaseException)]
        assert len(winners) == 1
        assert bytes((await store.get(key)).data) == f"writer {winners[0]}".encode()
        # A store may also say that it is busy; it must not fail in any other way.
        assert all(isinstance(result, str | AlreadyExists) for result in results)


async def test_update_needs_the_right_version(store: Store) -> None:
    first = await store.put("k", b"one")
    assert first is not None
    second = await store.update("k", b"two", etag=first)
    assert second is not None
    assert second != first
    with pytest.raises(Conflict):
        await store.update("k", b"three", etag=first)
    assert bytes((await store.get("k")).data) == b"two"
    assert (await store.head("k")).etag == second
    await store.update("k", b"three", etag=second)


async def test_update_of_nothing_is_a_conflict(store: Store) -> None:
    with pytest.raises(Conflict):
        await store.update("none", b"x", etag='"abc"')
    with pytest.raises(NotFound):
        await store.get("none")


async def test_of_concurrent_updates_exactly_one_wins(store: Store) -> None:
    etag = await store.put("k", b"start")
    for round_number in range(2):
        assert etag is not None
        results = await asyncio.gather(
            *(store.update("k", f"{round_number}/{writer}".encode(), etag=etag) for writer in range(6)),
            return_exceptions=True,
        )
        winners = [writer for writer, result in enumerate(results) if not isinstance(result, BaseException)]
        assert len(winners) == 1
        assert all(isinstance(result, str | Conflict) for result in results)
        blob = await store.get("k")
        assert bytes(blob.data) == f"{round_number}/{winners[0]}".encode()
        etag = blob.etag


async def test_ranges(store: Store) -> None:
    data = bytes(range(256)) * 16
    await store.put("k", data)
    assert bytes(await store.get_range("k", 0, 1)) == data[:1]
    assert bytes(await store.get_range("k", 100, 300)) == data[100:300]
    assert bytes(await store.get_range("k", 4000, 4096)) == data[4000:]
    assert bytes(await store.get_range("k", 7, 7)) == b""
    ranges = [(4000, 4096), (0, 10), (5, 20), (0, 4096), (9, 9)]
    assert [bytes(part) for part in await store.get_ranges("k", ranges)] == [data[a:b] for a, b in ranges]
    assert await store.get_ranges("k", []) == []


async def test_a_range_past_the_end_is_torn(store: Store) -> None:
    await store.put("k", b"0123456789")
    for start, end in [(0, 11), (5, 20), (10, 12), (15, 20), (20, 20)]:
        with pytest.raises(TornRead):
            await store.get_range("k", start, end)
    with pytest.raises(TornRead):
        await store.get_ranges("k", [(0, 5), (8, 11)])


async def test_a_range_that_is_none(store: Store) -> None:
    await store.put("k", b"0123456789")
    for start, end in [(-1, 3), (5, 4)]:
        with pytest.raises(ValueError):
            await store.get_range("k", start, end)


async def test_tails(store: Store) -> None:
    await store.put("k", b"0123456789")
    for length, expected in [(1, b"9"), (4, b"6789"), (10, b"0123456789"), (1000, b"0123456789"), (0, b"")]:
        tail = await store.get_tail("k", length)
        assert (bytes(tail.data), tail.size) == (expected, 10)


async def test_empty_objects(store: Store) -> None:
    await store.put("empty", b"")
    assert bytes((await store.get("empty")).data) == b""
    assert (await store.head("empty")).size == 0
    tail = await store.get_tail("empty", 64)
    assert (bytes(tail.data), tail.size) == (b"", 0)
    assert await keys_of(store, "") == ["empty"]
    with pytest.raises(AlreadyExists):
        await store.put("empty", b"")


async def test_big_objects(store: Store) -> None:
    data = bytes(range(256)) * (8 * MEBIBYTE // 256)
    await store.put("big", data)
    assert (await store.get("big")).data == data
    assert await store.get_range("big", 5 * MEBIBYTE - 3, 5 * MEBIBYTE + 3) == data[5 * MEBIBYTE - 3 :][:6]
    ranges = [(0, 10), (4 * MEBIBYTE, 4 * MEBIBYTE + 10), (8 * MEBIBYTE - 10, 8 * MEBIBYTE)]
    assert await store.get_ranges("big", ranges) == [data[a:b] for a, b in ranges]
    assert (await store.get_tail("big", 36)).data == data[-36:]


async def test_nothing_there(store: Store) -> None:
    await store.put("a/b", b"x")
    for key in ["none", "a", "a/b/c", "a/none"]:
        with pytest.raises(NotFound):
            await store.get(key)
        with pytest.raises(NotFound):
            await store.get_range(key, 0, 1)
        with pytest.raises(NotFound):
            await store.get_range(key, 0, 0)
        with pytest.raises(NotFound):
            await store.get_ranges(key, [(0, 1), (2, 3)])
        with pytest.raises(NotFound):
            await store.get_tail(key, 10)
        with pytest.raises(NotFound):
            await store.head(key)
    assert await keys_of(store, "none") == []


async def test_listing_is_ordered_and_paged(store: Store) -> None:
    expected = [f"data/{digit:x}/{epoch:010d}/w-{n:010d}" for digit in range(3) for epoch in range(2) for n in range(4)]
    await asyncio.gather(*(store.put(key, b"12345") for key in reversed(expected)))
    await store.put("journal/w/0000000000/0000000000", b"")
    for limit in [1, 5, 6, 24, 1000]:
        assert await keys_of(store, "data/", limit=limit) == expected
    page = await store.list("data/", limit=24)
    assert page.next_after is None
    assert all(isinstance(meta, ObjectMeta) and meta.size == 5 and meta.etag for meta in page.objects)
    assert await keys_of(store, "data/1/") == [key for key in expected if key.startswith("data/1/")]
    assert await keys_of(store, "") == [*expected, "journal/w/0000000000/0000000000"]


async def test_listing_after(store: Store) -> None:
    keys = [f"a/{n}" for n in range(6)]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    assert await keys_of(store, "a/", after="a/2") == keys[3:]
    assert await keys_of(store, "a/", after="a/2x") == keys[3:]
    assert await keys_of(store, "a/", after="a/5") == []
    assert await keys_of(store, "a/", after="Z") == keys
    assert await keys_of(store, "a/", after="b") == []
    assert await keys_of(store, "", after="a/0", limit=2) == keys[1:]


async def test_prefixes_are_plain_strings(store: Store) -> None:
    keys = ["data/1/x", "data/10/x", "data/11", "data/2/x", "data1", "dat"]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    for prefix in [
        "",
        "d",
        "dat",
        "data",
        "data/",
        "data/1",
        "data/1/",
        "data/10",
        "data/11",
        "data/2/x",
        "x",
        "data/0",
    ]:
        assert await keys_of(store, prefix, limit=2) == sorted(key for key in keys if key.startswith(prefix)), prefix


async def test_the_slash_has_its_place_in_the_order(store: Store) -> None:
    """SeaweedFS itself orders by folder, and its own pages would leave out `a/b`."""
    keys = ["a-b", "a.b", "a/b", "a/c/d", "a0"]
    await asyncio.gather(*(store.put(key, b"") for key in keys))
    for limit in [1, 2, 10]:
        assert await keys_of(store, "", limit=limit) == keys


async def test_delete_many(store: Store) -> None:
    keys = [f"d/{n % 3}/{n}" for n in range(20)]
    await asyncio.gather(*(store.put(key, b"x") for key in keys))
    await store.delete([*keys[:15], "d/none", "other/none"])
    assert await keys_of(store, "") == sorted(keys[15:])
    await store.delete(["d/none"])
    await store.delete([])
    await store.delete(keys)
    assert await keys_of(store, "") == []
    await store.put(keys[0], b"again")
    assert bytes((await store.get(keys[0])).data) == b"again"


async def test_a_deleted_object_is_not_updated(store: Store) -> None:
    etag = await store.put("k", b"x")
    assert etag is not None
    await store.delete(["k"])
    with pytest.raises(Conflict):
        await store.update("k", b"y", etag=etag)


@pytest.mark.parametrize(
    "key",
    ["with space", "ünïcode/ключ", "percent%2Fsign", "a+b&c=d", "quote'\"s", "hash#mark", "~tilde"],
)
async def test_odd_keys(store: Store, key: str) -> None:
    await store.put(key, b"odd")
    assert bytes((await store.get(key)).data) == b"odd"
    assert await keys_of(store, "") == [key]
    assert await keys_of(store, key[:3]) == [key]
    await store.delete([key])
    assert await keys_of(store, "") == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/a",
        "a/",
        "a//b",
        ".",
        "..",
        "a/../b",
        "../etc/passwd",
        "a/.",
        "nul\x00",
        "line\n",
        "back\\slash",
        "x" * 901,
        "\ud800",
    ],
)
async def test_keys_that_are_refused(store: Store, key: str) -> None:
    for call in [store.put(key, b""), store.get(key), store.head(key), store.delete([key]), store.get_tail(key, 1)]:
        with pytest.raises(InvalidKey):
            await call
