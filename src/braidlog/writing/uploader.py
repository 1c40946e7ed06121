"""The upload stage: one buffer, one create-only PUT, and it is durable.

The buffer is contiguous, and holds the object.
"""

from kio.schema.errors import ErrorCode

from braidlog.objects.keys import data_key
from braidlog.objects.store import Store
from braidlog.writing.packing import Packer
from braidlog.writing.request import Draft
from braidlog.writing.uploads import Uploads


class Uploader:
    """Uploads classic topics' objects.

    Retries are the store's (see `objects.retries`); an upload that still fails fails the requests of its object alone.

    A failed object is never sequenced, whatever became of its PUT, so its producers may safely send again.
    """

    def __init__(self, store: Store, packer: Packer, uploads: Uploads) -> None:
        self._store = store
        self._packer = packer
        self._uploads = uploads
        self._number = 0

    def submit(self, draft: Draft) -> None:
        writer = self._packer.writer
        write_epoch = writer.write_epoch()
        self._packer.pack(draft, write_epoch)
        draft.key = data_key(write_epoch, writer.incarnation, self._number)
        self._number += 1
        self._uploads.start(draft, self._put, failed_code=ErrorCode.not_enough_replicas)

    async def _put(self, draft: Draft) -> None:
        await self._store.put(draft.key, draft.packed)
