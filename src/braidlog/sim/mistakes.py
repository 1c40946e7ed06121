"""Deliberately wrong variants of Braidlog, to test the simulator: each must be caught, or the simulator proves nothing.

A mistake replaces one piece of real code with what somebody might plausibly have written instead, for one run.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from kio.schema.errors import ErrorCode

from braidlog.agent.agent import Agent
from braidlog.agent.apis import api_02_list_offsets
from braidlog.agent.follower import FeedFollower
from braidlog.agent.sequencing import Sequencing
from braidlog.agent.view import ClusterView
from braidlog.cache.blocks import BlockCache
from braidlog.control import producers, recent, sequencer
from braidlog.control.epochs import WriteEpochs
from braidlog.control.feed import Feed
from braidlog.control.interface import CommitObject, FeedRequest, ObjectVerdict, PartitionBounds
from braidlog.control.sweeper import Sweeper
from braidlog.objects.format import decode_footer_bytes, encode_footer
from braidlog.objects.keys import data_key, parse_data_key
from braidlog.objects.retrying import RetryingStore
from braidlog.objects.store import AlreadyExists, StoreError
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded
from braidlog.sim.process import CURRENT
from braidlog.writing.batcher import Batcher
from braidlog.writing.order import Order
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.uploader import Uploader


@dataclass(frozen=True, slots=True)
class Mistake:
    name: str
    what: str
    """What it does wrong, in a sentence."""
    plant: Callable[[], AbstractContextManager[None]]
    scenario: str = "mixed"
    """Where it shows soonest."""


@contextmanager
def _replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    originals = [(owner, name, owner.__dict__[name]) for owner, name, _ in replacements]
    for owner, name, wrong in replacements:
        setattr(owner, name, wrong)
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


MISTAKES: dict[str, Mistake] = {}


Plant = Callable[[], AbstractContextManager[None]]


def _mistake(what: str, scenario: str = "mixed") -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        name = plant.__name__.strip("_").replace("_", "-")
        MISTAKES[name] = Mistake(name, what, plant, scenario)
        return plant

    return register


# ── the write path ──


@_mistake("Acknowledges while the upload is still under way, and hopes for the best.")
def _acknowledge_before_the_put() -> AbstractContextManager[None]:
    async def upload(self: Uploader, draft: Draft) -> None:
        packed = draft.packed
        self._next.submit(draft)
        try:
            await self._store.put(draft.key, packed)
        except StoreError:
            pass
        finally:
            self._on_finished()

    return _replaced((Uploader, "_upload", upload))


@_mistake("Sequences objects in the order in which their uploads finish.")
def _commit_out_of_order() -> AbstractContextManager[None]:
    def submit(self: Order, draft: Draft) -> None:
        self._next.submit(draft)

    return _replaced((Order, "submit", submit))


@_mistake("Takes a request's place in the order only after an await.")
def _place_taken_late() -> AbstractContextManager[None]:
    original = Batcher.submit

    def submit(self: Batcher, request: WriteRequest) -> None:
        pause_s = 0.001 * (len(request.records) % 7)
        asyncio.get_running_loop().call_later(pause_s, original, self, request)

    return _replaced((Batcher, "submit", submit))


@_mistake("Takes any object that is already there for its own, under names that a restart repeats.", "crashes")
def _exists_already_taken_for_ours() -> AbstractContextManager[None]:
    original_init, original_put = Agent.__init__, RetryingStore.put

    def init(self: Agent, *arguments: Any, **options: Any) -> None:
        original_init(self, *arguments, **options)
        process = CURRENT.get()
        self.incarnation = process.host if process is not None else "agent"
        self._batcher = self._build_write_path()
        self.write_path = self._batcher

    async def put(self: RetryingStore, key: str, data: Any, *, overwrite: bool = False) -> str | None:
        try:
            return await original_put(self, key, data, overwrite=overwrite)
        except AlreadyExists:
            return None

    return _replaced((Agent, "__init__", init), (RetryingStore, "put", put))


@_mistake("Acknowledges every batch of an object that was sequenced, refused ones too.")
def _refusals_ignored() -> AbstractContextManager[None]:
    original = Sequencing._acknowledge

    def acknowledge(self: Sequencing, draft: Draft, verdict: ObjectVerdict) -> None:
        extents = [
            msgspec.structs.replace(
                extent, verdicts=[msgspec.structs.replace(batch, error_code=0) for batch in extent.verdicts]
            )
            for extent in verdict.extents
        ]
        original(self, draft, msgspec.structs.replace(verdict, extents=extents))

    return _replaced((Sequencing, "_acknowledge", acknowledge))


@_mistake("Gives every batch of an extent the extent's first offset as its own.")
def _first_offset_for_all() -> AbstractContextManager[None]:
    original = Sequencing._acknowledge

    def acknowledge(self: Sequencing, draft: Draft, verdict: ObjectVerdict) -> None:
        extents = [
            msgspec.structs.replace(extent, verdicts=[extent.verdicts[0]] * len(extent.verdicts))
            for extent in verdict.extents
        ]
        original(self, draft, msgspec.structs.replace(verdict, extents=extents))

    return _replaced((Sequencing, "_acknowledge", acknowledge))


@_mistake("Uploads and commits an object anew, under another name, when the answer to its commit is lost.")
def _sequence_twice() -> AbstractContextManager[None]:
    original_upload = Uploader._upload

    async def upload(self: Uploader, draft: Draft) -> None:
        self._next.store = self._store  # type: ignore[attr-defined]
        await original_upload(self, draft)

    async def commit(self: Sequencing, draft: Draft, _: float) -> ObjectVerdict:
        key, footer = draft.key, decode_footer_bytes(draft.footer)
        number = 0
        while True:
            data = encode_footer(footer)
            try:
                request = CommitObject(key, len(draft.packed), data)
                return await self._control.commit_object(request, timeout_s=3.0)
            except (ControlUnavailable, DeadlineExceeded):
                number += 1
                if number > 8:
                    raise
                await self._clock.sleep(1.0)
                key = data_key(footer.write_epoch, f"{footer.incarnation}{number}", parse_data_key(draft.key).number)
                footer = msgspec.structs.replace(footer, nonce=self._entropy.token(16))
                await self.store.put(key, draft.packed)  # type: ignore[attr-defined]

    return _replaced((Uploader, "_upload", upload), (Sequencing, "_commit", commit))


# ── the control plane ──


@_mistake("Forgets what each producer has written.")
def _forget_the_dedup() -> AbstractContextManager[None]:
    def judge(self: producers.ProducerPartition, epoch: int, first: int, count: int, offset: int, _: bool) -> int:
        self.planned_epoch = epoch
        self.planned_batches = producers.REMEMBERED.pack(first, first + count - 1, offset)
        return 0

    return _replaced((producers.ProducerPartition, "judge", judge))


@_mistake("Keeps what producers have written in memory only.")
def _producers_not_durable() -> AbstractContextManager[None]:
    return _replaced(
        (sequencer, "write_producers", lambda tx, rows: None),
        (sequencer, "encode_batches", lambda batches: None),
        (recent, "write_producer_partitions", lambda tx, states: None),
    )


@_mistake("Publishes changes before they are durable.", "crashes")
def _publish_before_durable() -> AbstractContextManager[None]:
    original = sequencer.Sequencer._try_group

    class Early:
        """A metadata store that lets the plan be published before it is written."""

        def __init__(self, inner: Any, feed: Feed) -> None:
            self._inner = inner
            self._feed = feed

        async def transact(self, write: Any) -> Any:
            plan = write.__self__
            self._feed.publish(plan.events)
            plan.events = []
            await asyncio.sleep(0.05)  # a disk that takes its time
            return await self._inner.transact(write)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    async def try_group(self: sequencer.Sequencer, group: Any) -> Any:
        if not isinstance(self._metadata, Early):
            self._metadata = Early(self._metadata, self._feed)
        return await original(self, group)

    return _replaced((sequencer.Sequencer, "_try_group", try_group))


@_mistake("Sweeps what nothing refers to without refusing its late commit first.", "sleepers")
def _sweep_without_the_epoch_floor() -> AbstractContextManager[None]:
    async def raise_floor(self: WriteEpochs, floor: int) -> int:
        return max(floor, 0)

    return _replaced((WriteEpochs, "raise_floor", raise_floor))


@_mistake("Sweeps objects of the current epoch too, whose commits are still on their way.")
def _sweep_without_grace() -> AbstractContextManager[None]:
    async def run_once(self: Sweeper) -> None:
        await self._sweep_orphans(self._epochs.current + 1)

    return _replaced((Sweeper, "run_once", run_once))


# ── the read path ──


@_mistake("Goes on after a gap in the change feed as if nothing was missing.")
def _lose_the_feeds_gap() -> AbstractContextManager[None]:
    original_append = ClusterView._append

    def append(self: ClusterView, stored: Any, extents: Any) -> None:
        for extent in extents:
            partition = self.partitions.get(extent.partition_id)
            if partition is not None:
                partition.high_watermark = extent.base_offset
        original_append(self, stored, extents)

    async def run(self: FeedFollower) -> None:
        while True:
            try:
                page = await self._control.read_feed(FeedRequest(self._view.position, 10_000), timeout_s=15.0)
                self._view.apply(page.events, page.position)
            except Exception:  # noqa: BLE001 - the mistake does not care
                await self._clock.sleep(0.5)

    return _replaced((ClusterView, "_append", append), (FeedFollower, "run", run))


@_mistake("Answers where a log ends from memory instead of asking.")
def _latest_from_memory() -> AbstractContextManager[None]:
    original = api_02_list_offsets._find

    async def find(agent: Agent, partition: Any, bounds: PartitionBounds, timestamp_ms: int) -> Any:
        if timestamp_ms == api_02_list_offsets.LATEST:
            return ErrorCode.none, (partition.high_watermark, -1)
        return await original(agent, partition, bounds, timestamp_ms)

    return _replaced((api_02_list_offsets, "_find", find))


@_mistake("Keeps blocks in the cache under their object's number in its epoch, which other agents use too.")
def _cache_mixes_objects_up() -> AbstractContextManager[None]:
    original_keep, original_block = BlockCache._keep, BlockCache._block

    def short(key: str) -> str:
        return key.rpartition("-")[2]

    def keep(self: BlockCache, name: tuple[str, int], block: memoryview) -> None:
        original_keep(self, (short(name[0]), name[1]), block)

    async def block(self: BlockCache, key: str, number: int, object_size: int) -> memoryview:
        known = self._blocks.get((short(key), number))
        return known if known is not None else await original_block(self, key, number, object_size)

    return _replaced((BlockCache, "_keep", keep), (BlockCache, "_block", block))
