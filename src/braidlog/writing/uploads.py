"""What the upload stages share: one task for each object.

The stages are those of classic and of journaled topics.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from kio.schema.errors import ErrorCode

from braidlog.objects.store import Bytes, StoreError, StoreFull
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.request import Draft
from braidlog.writing.stage import DraftStage

log = structlog.get_logger(__name__)

StoredListener: TypeAlias = Callable[[str, Bytes], None]
"""Called with the key and the bytes of an object that is in the store."""


@dataclass(frozen=True, slots=True)
class Uploads:
    """Runs uploads, and hands the drafts that the store took to the next stage.

    Drafts that the store did not take fail.
    """

    next_stage: DraftStage
    tasks: TaskGroup
    on_ended: Callable[[Draft], None]
    """Called when an upload has ended, well or badly: there is room for the next one."""
    on_stored: StoredListener

    def start(self, draft: Draft, put: Callable[[Draft], Awaitable[None]], *, failed_code: ErrorCode) -> None:
        """Upload a draft.

        `failed_code`: the producer's error if the store was out of reach.
        """
        self.tasks.spawn(self._upload(draft, put, failed_code))

    async def _upload(self, draft: Draft, put: Callable[[Draft], Awaitable[None]], failed_code: ErrorCode) -> None:
        try:
            await put(draft)
        except StoreError as error:
            log.warning("upload failed", key=draft.key, bytes=len(draft.packed), error=str(error), help=error.help)
            code = ErrorCode.kafka_storage_error if isinstance(error, StoreFull) else failed_code
            draft.fail(code, f"the object store did not take the data: {error}")
            return
        except BaseException:
            draft.fail(failed_code, "the upload was given up")
            raise
        finally:
            self.on_ended(draft)
        self.on_stored(draft.key, draft.packed)
        self.next_stage.submit(draft)
