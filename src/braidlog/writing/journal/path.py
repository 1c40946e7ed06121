"""The journaled half of the write path, as one stage.

`writing.path` puts it together and shows the whole picture.
"""

from collections.abc import Callable

import structlog

from braidlog.objects.store import StoreError
from braidlog.writing.ack_order import AckOrder
from braidlog.writing.batcher import BatcherStatistics, BatchStage
from braidlog.writing.journal.lazy_sequencing import JournalFile, LazySequencing, LazyStatistics
from braidlog.writing.journal.sequence_ends import SequenceEnds
from braidlog.writing.journal.unsequenced import Unsequenced
from braidlog.writing.journal.uploader import JournalStatistics, JournalUploader
from braidlog.writing.request import Draft, WriteRequest

log = structlog.get_logger(__name__)


class JournalPath:
    """The stages of journaled topics, from the first to the last.

    It has a batcher of its own, so that nothing here waits for an object of classic topics; budget and memory are
    shared with those. The shards of an agent share their journal files as they share other objects, in groups of their
    own: the puller puts the requests of all members into its own journal.
    """

    def __init__(
        self,
        batcher: BatchStage,
        uploader: JournalUploader,
        sequencing: LazySequencing,
        unsequenced: Unsequenced,
        ends: SequenceEnds,
        ack_order: AckOrder | None,
        open_taken_over: Callable[[Draft], JournalFile],
    ) -> None:
        """`ack_order` is None if requests were announced to it before they came here.

        `open_taken_over` gets classic drafts that are journaled.
        """
        self._batcher = batcher
        self._uploader = uploader
        self._sequencing = sequencing
        self._unsequenced = unsequenced
        self._ack_order = ack_order
        self._open_taken_over = open_taken_over
        self.ends = ends

    def submit(self, request: WriteRequest) -> None:
        if self._ack_order is not None and request.entry.producer_id >= 0:
            self._ack_order.expect(request)
        self._unsequenced.add((request.topic_id, request.partition))
        request.way_back = self._unsequenced.answered
        self._batcher.submit(request)

    def uploaded(self, draft: Draft) -> None:
        """An upload into the journal has ended, well or badly."""
        self._batcher.uploaded(draft)

    async def take_over(self, draft: Draft) -> bool:
        """Journal a classic draft that could not be sequenced.

        False: the store did not take it.
        """
        try:
            await self._uploader.take_in(draft)
        except StoreError as error:
            log.warning(
                "could not journal an object that was not sequenced", key=draft.key, error=str(error), help=error.help
            )
            return False
        self._sequencing.follow(draft, self._open_taken_over(draft))
        return True

    async def flush(self) -> None:
        """Put into the journal what waits for it."""
        await self._batcher.flush()

    async def finish(self, timeout_s: float) -> None:
        """Give files in the journal some time to be sequenced.

        Those that are not will be replayed.
        """
        self._uploader.close()
        await self._sequencing.finish(timeout_s)
        await self.ends.finish()

    def statistics(self) -> tuple[BatcherStatistics, JournalStatistics, LazyStatistics]:
        return self._batcher.batcher_statistics(), self._uploader.statistics(), self._sequencing.statistics()
