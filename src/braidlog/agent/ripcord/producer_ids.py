"""Gives producers their ids while the control plane is away.

The ids come from blocks that agents claim in the bucket.

An agent claims a block by creating its object, which only one agent can do. The ids are from a range that the control
plane never uses, so the two need not know of each other. Blocks are chosen at random: there are ten billion of them, so
nobody needs to list those that are taken.
"""

import asyncio

import msgspec

from braidlog.objects.keys import NUMBER_MAX, producer_ids_key
from braidlog.objects.store import AlreadyExists, Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, Remedy
from braidlog.runtime.limits import PRODUCER_IDS_OF_AGENTS_FROM

BLOCK_IDS = 1_000
CLAIM_ATTEMPTS_MAX = 8


class NoProducerIds(BraidError):
    """Every block that was tried is taken."""

    remedy = Remedy.RETRY


class BlockClaim(msgspec.Struct, frozen=True):
    """The content of a block's object.

    It is for people: only its existence counts. Persisted: only add fields.
    """

    incarnation: str
    claimed_ms: int


def block_start(block: int) -> int:
    """The first id of a block; it has `BLOCK_IDS` of them."""
    return PRODUCER_IDS_OF_AGENTS_FROM + block * BLOCK_IDS


class ProducerIds:
    """Claims a block for the first id, and the next block when that one is used up."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy, *, incarnation: str) -> None:
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._next = 0
        self._end = 0
        self._claiming = asyncio.Lock()
        self.blocks_claimed = 0

    async def take(self) -> int:
        """Take an id that nobody has had.

        Raises `StoreError` if the bucket cannot be written to.
        """
        async with self._claiming:
            if self._next >= self._end:
                await self._claim()
            taken = self._next
            self._next += 1
            return taken

    async def _claim(self) -> None:
        for _ in range(CLAIM_ATTEMPTS_MAX):
            block = self._entropy.below(NUMBER_MAX + 1)
            # The random name makes the content unique, so that a PUT without an answer can be recognised as this one.
            claim = BlockClaim(f"{self._incarnation}-{self._entropy.token(8).hex()}", self._clock.wall_ms())
            try:
                await self._store.put(producer_ids_key(block), msgspec.json.encode(claim))
            except AlreadyExists:
                continue
            self._next, self._end = block_start(block), block_start(block + 1)
            self.blocks_claimed += 1
            return
        raise NoProducerIds(
            f"{CLAIM_ATTEMPTS_MAX} blocks in a row were taken",
            help="Check whether something else writes to producer-ids/.",
        )
