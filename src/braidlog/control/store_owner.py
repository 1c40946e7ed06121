"""Checks that the metadata describes this store, before anything is deleted."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from braidlog.control.metadata.counters import read_counter
from braidlog.control.metadata.increments import restore_key
from braidlog.control.metadata.shipped import RESTORE_NUMBER
from braidlog.control.metadata.store import MetadataStore, Transaction
from braidlog.objects.keys import DATA_PREFIX, JOURNAL_PREFIX, PROBE_KEY
from braidlog.objects.owner import WrongStore, claim, read_owner
from braidlog.objects.store import NotFound, Store, StoreError
from braidlog.runtime.errors import InvalidSetting, Remedy

_log = structlog.get_logger(__name__)

CHECK_AT_START_S_MAX = 5.0
CHECK_INTERVAL_S = 2.0
"""How often to check, until the owner of the store is known."""

_ANOTHERS = "Give the metadata that belongs to this store, with --metadata; or another store or prefix, with --store."


class StoreOwner:
    def __init__(self, store: Store, metadata: MetadataStore, cluster_id: str) -> None:
        self._store = store
        self._metadata = metadata
        self._cluster_id = cluster_id
        self._is_ours = False

    async def check_at_start(self) -> None:
        """Check the store as `check` does, unless it is not reachable now.

        Then it is checked later.
        """
        await _check_if_reachable(self._store, self.check())

    async def check(self) -> None:
        """Raise `WrongStore` if the store belongs to another cluster.

        Claim a store that nobody has used.
        """
        if self._is_ours:
            return
        try:
            owner = await read_owner(self._store)
        except NotFound:
            await _check_unclaimed(self._store, *await self._metadata.read(_known_object))
            owner = await claim(self._store, self._cluster_id)
            _log.info("claimed the store for this cluster", store=self._store.url, cluster_id=owner)
        _check_same(self._store, owner, self._cluster_id)
        self._is_ours = True


async def refuse_wrong_store(store: Store, metadata: MetadataStore, cluster_id: str) -> None:
    """Raise `WrongStore` if the store is known not to be this cluster's.

    Raise `InvalidSetting` if it cannot be used, for reading or for writing.

    Takes nothing over. A store that is not reachable now is left for later.
    """
    await _check_if_reachable(store, _refuse_wrong(store, metadata, cluster_id))
    await _check_if_reachable(store, _write_probe(store))


async def refuse_replaced(store: Store, metadata: MetadataStore) -> None:
    """Raise `WrongStore` if a restore has replaced this metadata.

    A store that is not reachable now is left for later.
    """
    await _check_if_reachable(store, _refuse_replaced(store, metadata))


async def _refuse_replaced(store: Store, metadata: MetadataStore) -> None:
    restore = await metadata.peek(lambda tx: read_counter(tx, RESTORE_NUMBER))
    newest = restore
    while True:
        try:
            await store.head(restore_key(newest + 1))
        except NotFound:
            break
        newest += 1
    if newest > restore:
        raise WrongStore(
            f"restore {newest} of {store.url} has replaced this metadata, which restore {restore} made",
            help="Use the metadata that the restore has written. If it did not finish, run `braid control restore`.",
        )


async def _refuse_wrong(store: Store, metadata: MetadataStore, cluster_id: str) -> None:
    try:
        owner = await read_owner(store)
    except NotFound:
        await _check_unclaimed(store, *await metadata.peek(_known_object))
    else:
        _check_same(store, owner, cluster_id)


async def _write_probe(store: Store) -> None:
    await store.put(PROBE_KEY, b"", overwrite=True)


async def _check_if_reachable(store: Store, check: Coroutine[Any, Any, None]) -> None:
    try:
        async with asyncio.timeout(CHECK_AT_START_S_MAX):
            await check
    except TimeoutError:
        _log.warning("the store does not answer", store=store.url)
    except StoreError as error:
        if error.remedy not in (Remedy.RETRY, Remedy.CHECK_OUTCOME):
            help_line = error.help or "Is store_url right? `braid doctor` looks closer."
            raise InvalidSetting(f"{store.url} cannot be used: {error}", help=help_line) from error
        _log.warning("the store cannot be used yet", store=store.url, error=str(error), help=error.help)


async def _check_unclaimed(store: Store, is_new: bool, known_key: str | None) -> None:
    """Check a store without an owner.

    It must hold an object that the metadata knows, or be empty if the metadata knows none.
    """
    if known_key is not None:
        try:
            await store.head(known_key)
        except NotFound:
            raise WrongStore(
                f"{store.url} does not have {known_key}, which the metadata refers to", help=_ANOTHERS
            ) from None
    elif is_new:
        for prefix in (DATA_PREFIX, JOURNAL_PREFIX):
            if (await store.list(prefix, limit=1)).objects:
                raise WrongStore(f"{store.url} holds records, but the metadata refers to none", help=_ANOTHERS)


def _check_same(store: Store, owner: str, cluster_id: str) -> None:
    if owner != cluster_id:
        raise WrongStore(f"{store.url} belongs to cluster {owner}, but the metadata to {cluster_id}", help=_ANOTHERS)


def _known_object(tx: Transaction) -> tuple[bool, str | None]:
    """Return whether nothing was ever sequenced, and the newest referenced object."""
    live = tx.query("SELECT object_key FROM objects WHERE live_count > 0 ORDER BY number DESC LIMIT 1")
    if live:
        return False, str(live[0][0])
    return not tx.query("SELECT number FROM objects LIMIT 1"), None
