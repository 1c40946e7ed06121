"""Whose store it is: the cluster that was first to use it has written its id there.

Without its metadata, a store's objects look like leftovers, and leftovers are deleted. So no cluster may take another's
store for its own.
"""

import msgspec

from braidlog.objects.keys import OWNER_KEY
from braidlog.objects.store import AlreadyExists, Store
from braidlog.runtime.errors import BraidError, Remedy


class WrongStore(BraidError):
    """The store belongs to another cluster, or is not the one that the metadata speaks of."""

    remedy = Remedy.FIX_INPUT


class _Owner(msgspec.Struct):
    """Persisted as JSON: keep it stable."""

    cluster_id: str


async def read_owner(store: Store) -> str:
    """The id of the cluster that the store belongs to. `NotFound` where none has used it."""
    blob = await store.get(OWNER_KEY)
    try:
        return msgspec.json.decode(bytes(blob.data), type=_Owner).cluster_id
    except msgspec.MsgspecError as error:
        raise WrongStore(
            f"{store.url}: {OWNER_KEY} cannot be read: {error}", help="It should hold the id of the store's cluster."
        ) from error


async def claim(store: Store, cluster_id: str) -> str:
    """Make the store that cluster's, unless somebody else was quicker. Returns whose it is."""
    try:
        await store.put(OWNER_KEY, msgspec.json.encode(_Owner(cluster_id)))
    except AlreadyExists:
        return await read_owner(store)
    return cluster_id
