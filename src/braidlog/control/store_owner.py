"""Makes sure that the store is the one that the metadata speaks of, before anything in it is deleted."""

import asyncio

import structlog

from braidlog.control.metadata import MetadataStore, Transaction
from braidlog.objects.keys import DATA_PREFIX, JOURNAL_PREFIX
from braidlog.objects.owner import WrongStore, claim, read_owner
from braidlog.objects.store import NotFound, Store, StoreError
from braidlog.runtime.errors import InvalidSetting, Remedy

_log = structlog.get_logger(__name__)

CHECK_AT_START_S_MAX = 5.0
CHECK_INTERVAL_S = 2.0
"""Until it is known whose store it is."""

_ANOTHERS = "Give the metadata that belongs to this store, with --metadata; or another store or prefix, with --store."


class StoreOwner:
    def __init__(self, store: Store, metadata: MetadataStore, cluster_id: str) -> None:
        self._store = store
        self._metadata = metadata
        self._cluster_id = cluster_id
        self._is_ours = False

    async def check_at_start(self) -> None:
        """As `check`, but a store that is away for the moment is looked at later."""
        url = self._store.url
        try:
            async with asyncio.timeout(CHECK_AT_START_S_MAX):
                await self.check()
        except TimeoutError:
            _log.warning("the store does not answer", store=url)
        except StoreError as error:
            if error.remedy not in (Remedy.RETRY, Remedy.CHECK_OUTCOME):
                help_line = error.help or "Is store_url right? `braid doctor` looks closer."
                raise InvalidSetting(f"{url} cannot be used: {error}", help=help_line) from error
            _log.warning("the store cannot be used yet", store=url, error=str(error), help=error.help)

    async def check(self) -> None:
        """Raises `WrongStore` where it is not this cluster's. One that nobody has used becomes it."""
        if self._is_ours:
            return
        try:
            owner = await read_owner(self._store)
        except NotFound:
            await self._check_unclaimed()
            owner = await claim(self._store, self._cluster_id)
            _log.info("the store belongs to a cluster from now on", store=self._store.url, cluster_id=owner)
        if owner != self._cluster_id:
            raise WrongStore(
                f"{self._store.url} belongs to cluster {owner}, and the metadata to {self._cluster_id}", help=_ANOTHERS
            )
        self._is_ours = True

    async def _check_unclaimed(self) -> None:
        """It must hold what the metadata says; and where the metadata knows of nothing, it must be empty."""
        is_new, key = await self._metadata.read(_known_object)
        if key is not None:
            try:
                await self._store.head(key)
            except NotFound:
                raise WrongStore(
                    f"{self._store.url} does not have {key}, which the metadata knows of", help=_ANOTHERS
                ) from None
        elif is_new:
            for prefix in (DATA_PREFIX, JOURNAL_PREFIX):
                if (await self._store.list(prefix, limit=1)).objects:
                    raise WrongStore(f"{self._store.url} holds records, and the metadata knows of none", help=_ANOTHERS)


def _known_object(tx: Transaction) -> tuple[bool, str | None]:
    """Whether nothing was ever sequenced; and the newest object that something refers to."""
    live = tx.query("SELECT object_key FROM objects WHERE live_count > 0 ORDER BY number DESC LIMIT 1")
    if live:
        return False, str(live[0][0])
    return not tx.query("SELECT number FROM objects LIMIT 1"), None
