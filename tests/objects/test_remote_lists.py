"""Lists of a remote store are complete, whatever order its server lists keys in."""

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any, cast

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidlog.objects.remote import RemoteStore
from braidlog.objects.store import ListedOutOfOrder

Order = Callable[[str], object]

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def by_key(key: str) -> object:
    return key


def by_folder(key: str) -> object:
    """`a/b` before `a-b`."""
    return key.split("/")


class Server:
    """Takes the place of obstore's listing: pages of a few keys, in an order of its own."""

    def __init__(self, keys: set[str], order: Order, page_keys: int) -> None:
        self._keys = sorted(keys, key=cast(Any, order))
        self._order = order
        self._page_keys = page_keys

    async def list(
        self, store: object, prefix: str | None, *, offset: str | None, chunk_size: int
    ) -> AsyncIterator[list[dict[str, object]]]:
        keys = [key for key in self._keys if prefix is None or key.startswith(f"{prefix}/")]
        if offset is not None:
            keys = [key for key in keys if cast(Any, self._order(key)) > cast(Any, self._order(offset))]
        for start in range(0, len(keys), self._page_keys):
            page = keys[start : start + self._page_keys]
            yield [{"path": key, "size": 1, "e_tag": None, "last_modified": NOW} for key in page]


async def list_all(store: RemoteStore, prefix: str, limit: int) -> list[str]:
    """Page by page, as sweeps and replays do: from the beginning where the store says so."""
    found: list[str] = []
    after: str | None = None
    while True:
        try:
            page = await store.list(prefix, after=after, limit=limit)
        except ListedOutOfOrder:
            found, after = [], None
            continue
        found += [meta.key for meta in page.objects]
        if page.next_after is None:
            return found
        after = page.next_after


parts = st.text("ab-.", min_size=1, max_size=3)
keys = st.builds("/".join, st.lists(parts, min_size=1, max_size=3))


@given(
    keys=st.sets(keys, max_size=25),
    order=st.sampled_from([by_key, by_folder]),
    prefix=st.one_of(st.just(""), keys, keys.map(lambda key: f"{key}/")),
    page_keys=st.integers(1, 5),
    limit=st.integers(1, 6),
)
def test_a_list_has_every_key_once_and_in_order(
    keys: set[str], order: Order, prefix: str, page_keys: int, limit: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(obstore, "list", Server(keys, order, page_keys).list)
        store = RemoteStore(cast(Any, None), url="s3://bucket")
        found = asyncio.run(list_all(store, prefix, limit))
    assert found == sorted(key for key in keys if key.startswith(prefix))


async def test_an_order_that_is_wrong_only_between_two_pages_of_the_server_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(obstore, "list", Server({"a/1", "a/2", "a-b"}, by_folder, 2).list)
    store = RemoteStore(cast(Any, None), url="s3://bucket")
    assert [meta.key for meta in (await store.list("", limit=2)).objects] == ["a-b", "a/1"]


async def test_a_page_behind_others_that_may_lack_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore, "list", Server({"a/1", "a/2", "a-b"}, by_folder, 2).list)
    store = RemoteStore(cast(Any, None), url="s3://bucket")
    first = await store.list("", limit=1)
    assert [meta.key for meta in first.objects] == ["a/1"]
    with pytest.raises(ListedOutOfOrder):
        await store.list("", after=first.next_after, limit=1)
