"""The upload stage: one contiguous buffer, one create-only PUT, and the object is durable."""

from collections.abc import Callable

import structlog
from kio.schema.errors import ErrorCode

from braidlog.objects.keys import data_key
from braidlog.objects.store import Bytes, Store, StoreError, StoreFull
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.arena import Arena
from braidlog.writing.packing import pack
from braidlog.writing.request import Draft
from braidlog.writing.stage import DraftStage

log = structlog.get_logger(__name__)


class Uploader:
    """Retries are the store's (see `objects.retrying`); what still fails, fails the requests of this object alone.

    A failed object is never sequenced, whatever became of its PUT, so its producers may safely send again.
    """

    def __init__(
        self,
        next_stage: DraftStage,
        store: Store,
        clock: Clock,
        entropy: Entropy,
        *,
        incarnation: str,
        zone: str,
        write_epoch: Callable[[], int],
        on_uploaded: Callable[[str, Bytes], None],
        on_finished: Callable[[Draft], None],
        tasks: TaskGroup,
        arena: Arena,
    ) -> None:
        self._next = next_stage
        self._store = store
        self._clock = clock
        self._entropy = entropy
        self._incarnation = incarnation
        self._zone = zone
        self._write_epoch = write_epoch
        self._on_uploaded = on_uploaded
        self._on_finished = on_finished
        self._tasks = tasks
        self._arena = arena
        self._number = 0

    def submit(self, draft: Draft) -> None:
        write_epoch = self._write_epoch()
        pack(
            draft,
            self._arena,
            nonce=self._entropy.token(16),
            write_epoch=write_epoch,
            incarnation=self._incarnation,
            created_ms=self._clock.wall_ms(),
            zone=self._zone,
        )
        draft.key = data_key(write_epoch, self._incarnation, self._number)
        self._number += 1
        self._tasks.spawn(self._upload(draft))

    async def _upload(self, draft: Draft) -> None:
        try:
            await self._store.put(draft.key, draft.packed)
        except StoreError as error:
            log.warning("upload failed", key=draft.key, bytes=len(draft.packed), error=str(error), help=error.help)
            code = ErrorCode.kafka_storage_error if isinstance(error, StoreFull) else ErrorCode.not_enough_replicas
            draft.fail(code, f"the object store did not take the data: {error}")
            return
        except BaseException:
            draft.fail(ErrorCode.not_enough_replicas, "the upload was given up")
            raise
        finally:
            self._on_finished(draft)
        self._on_uploaded(draft.key, draft.packed)
        self._next.submit(draft)
