"""Adds up what all nodes of an application have used.

Nodes that run are asked. Nodes that have ended left it in the store; of nodes that were killed, the store has what they
had used at their last beat.
"""

import asyncio

import msgspec

from braidlog.cache.seal import Seal
from braidlog.objects.keys import InvalidKey, parse_shuffle_node_key, shuffle_nodes_prefix, shuffle_usage_prefix
from braidlog.objects.store import NotFound, Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError
from braidlog.runtime.rpc.client import RpcClient
from braidlog.spark.shuffle.service.node_ring import USAGE_METHOD
from braidlog.spark.shuffle.service.usage import ShuffleUsage, decode_usage

ANSWER_S_MAX = 5.0
NODES_MAX = 10_000
_PAGE = 1000


async def stored_usage(store: Store, job: str) -> ShuffleUsage:
    """Return what the store knows.

    Of running nodes, that is what they had used at their last beat.
    """
    found = [await _stored(store, key) for key in await _keys(store, job)]
    return sum((each for each in found if each is not None), ShuffleUsage())


async def current_usage(store: Store, job: str, secret: str, *, clock: Clock, entropy: Entropy) -> ShuffleUsage:
    """Return what nodes say that run, and what the store knows of all others."""
    seal = Seal(secret)

    async def of(key: str) -> ShuffleUsage | None:
        try:
            address = parse_shuffle_node_key(key).address
        except InvalidKey:
            return await _stored(store, key)  # it has ended
        client = RpcClient(address, clock, entropy.fork(address), connect_timeout_s=ANSWER_S_MAX)
        try:
            return decode_usage(await client.call(USAGE_METHOD, seal.close(USAGE_METHOD, b""), ANSWER_S_MAX))
        except (BraidError, msgspec.MsgspecError):
            return await _stored(store, key)
        finally:
            await client.close()

    found = await asyncio.gather(*(of(key) for key in await _keys(store, job)))
    return sum((each for each in found if each is not None), ShuffleUsage())


async def _keys(store: Store, job: str) -> list[str]:
    keys: list[str] = []
    for prefix in (shuffle_nodes_prefix(job), shuffle_usage_prefix(job)):
        after: str | None = None
        while len(keys) < NODES_MAX:
            page = await store.list(prefix, after=after, limit=_PAGE)
            keys += [found.key for found in page.objects]
            after = page.next_after
            if after is None:
                break
    return keys


async def _stored(store: Store, key: str) -> ShuffleUsage | None:
    try:
        return decode_usage(bytes((await store.get(key)).data))
    except (NotFound, msgspec.MsgspecError):
        return None
