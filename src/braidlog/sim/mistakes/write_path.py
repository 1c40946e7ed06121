"""Mistakes in the write path."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from braidlog.agent.agent import Agent
from braidlog.control.interface import CommitObject, ObjectVerdict
from braidlog.objects.format import decode_footer_bytes, encode_footer
from braidlog.objects.keys import data_key, parse_data_key
from braidlog.objects.retries import RetryingStore
from braidlog.objects.store import AlreadyExists, Store, StoreError
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded
from braidlog.sim.mistakes.mistake import mistake, replaced
from braidlog.sim.virtual.process import CURRENT
from braidlog.writing.batcher import Batcher
from braidlog.writing.order import Order
from braidlog.writing.path import WritePath
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.sequencing import Sequencing
from braidlog.writing.uploader import Uploader
from braidlog.writing.uploads import Uploads


@mistake("Acknowledges while the upload is still in flight.")
def _acknowledge_before_the_put() -> AbstractContextManager[None]:
    async def upload(self: Uploads, draft: Draft, put: Any, _: int) -> None:
        self.next_stage.submit(draft)
        try:
            await put(draft)
        except StoreError:
            pass
        finally:
            self.on_ended(draft)

    return replaced((Uploads, "_upload", upload))


@mistake("Sequences objects in the order in which their uploads finish.")
def _commit_out_of_order() -> AbstractContextManager[None]:
    def submit(self: Order, draft: Draft) -> None:
        self._next.submit(draft)

    return replaced((Order, "submit", submit))


@mistake("Takes a request's place in the order only after an await.")
def _place_taken_late() -> AbstractContextManager[None]:
    original = Batcher.submit

    def submit(self: Batcher, request: WriteRequest) -> None:
        pause_s = 0.001 * (len(request.records) % 7)
        asyncio.get_running_loop().call_later(pause_s, original, self, request)

    return replaced((Batcher, "submit", submit))


@mistake("Takes any existing object for its own, with keys that a restart repeats.", "crashes")
def _exists_already_taken_for_ours() -> AbstractContextManager[None]:
    original_build, original_put = Agent._build_write_path, RetryingStore.put

    def build_write_path(self: Agent, link: Any) -> WritePath:
        process = CURRENT.get()
        self.incarnation = process.host if process is not None else "agent"
        return original_build(self, link)

    async def put(self: RetryingStore, key: str, data: Any, *, overwrite: bool = False) -> str | None:
        try:
            return await original_put(self, key, data, overwrite=overwrite)
        except AlreadyExists:
            return None

    return replaced((Agent, "_build_write_path", build_write_path), (RetryingStore, "put", put))


@mistake("Acknowledges every batch of a sequenced object, refused ones too.")
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

    return replaced((Sequencing, "_acknowledge", acknowledge))


@mistake("Gives every batch of an extent the extent's first offset as its own.")
def _first_offset_for_all() -> AbstractContextManager[None]:
    original = Sequencing._acknowledge

    def acknowledge(self: Sequencing, draft: Draft, verdict: ObjectVerdict) -> None:
        extents = [
            msgspec.structs.replace(extent, verdicts=[extent.verdicts[0]] * len(extent.verdicts))
            for extent in verdict.extents
        ]
        original(self, draft, msgspec.structs.replace(verdict, extents=extents))

    return replaced((Sequencing, "_acknowledge", acknowledge))


@mistake("Uploads and commits an object again, under another key, when the answer to its commit is lost.")
def _sequence_twice() -> AbstractContextManager[None]:
    original_put = Uploader._put
    stores: dict[str, Store] = {}

    async def put(self: Uploader, draft: Draft) -> None:
        stores[draft.key] = self._store
        await original_put(self, draft)

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
                await stores[draft.key].put(key, draft.packed)

    return replaced((Uploader, "_put", put), (Sequencing, "_commit", commit))
