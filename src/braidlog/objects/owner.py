"""The owner of a store: the first cluster that used it has written its id there.

Without its metadata, a store's objects look like leftovers, and leftovers are deleted. So no cluster may use another's
store.
"""

import msgspec

from braidlog.objects.keys import OWNER_KEY
from braidlog.objects.store import AlreadyExists, Store
from braidlog.runtime.errors import BraidError, Remedy


class WrongStore(BraidError):
    """The store belongs to another cluster, or is not the one that the metadata names."""

    remedy = Remedy.FIX_INPUT


class _Owner(msgspec.Struct):
    """Persisted as JSON: keep it stable."""

    cluster_id: str


async def read_owner(store: Store) -> str:
    """Return the id of the cluster that owns the store.

    Raises `NotFound` if none has used it.
    """
    blob = await store.get(OWNER_KEY)
    try:
        return msgspec.json.decode(bytes(blob.data), type=_Owner).cluster_id
    except msgspec.MsgspecError as error:
        raise WrongStore(
            f"{store.url}: {OWNER_KEY} cannot be read: {error}", help="It should hold the id of the store's cluster."
        ) from error


async def claim(store: Store, cluster_id: str) -> str:
    """Claim the store for a cluster, unless another was quicker.

    Returns the id of its owner.
    """
    try:
        await store.put(OWNER_KEY, msgspec.json.encode(_Owner(cluster_id)))
    except AlreadyExists:
        return await read_owner(store)
    return cluster_id
