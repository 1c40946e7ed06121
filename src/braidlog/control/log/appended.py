"""The extents and batches that become readable when one object is sequenced."""

from dataclasses import dataclass, field

from braidlog.control.interface import IndexedExtent, StoredObject
from braidlog.control.log.producer_partition import ProducerPartition
from braidlog.control.log.producers import AppendedBatch
from braidlog.control.partitions import PartitionState
from braidlog.objects.layout import BatchEntry, ExtentEntry


@dataclass(slots=True)
class Appended:
    """Everything that one object appends, in the order of each partition's offsets."""

    extents: list[IndexedExtent] = field(default_factory=list)
    states: list[PartitionState] = field(default_factory=list)
    """The partition of each extent."""
    batches: list[AppendedBatch] = field(default_factory=list)
    """The batches of idempotent producers."""
    writers: list[ProducerPartition] = field(default_factory=list)
    """The producer of each of these batches."""
    others: dict[int, StoredObject] = field(default_factory=dict)
    """Older objects that some of the extents lie in, by number: held batches that are appended now."""


class Run:
    """Consecutive appended batches, which make one extent of the index.

    They are all of one extent of the object.

    A batch that is not appended ends the run, and the next one that is begins another.
    """

    def __init__(self, object_number: int, extent: ExtentEntry, state: PartitionState, appended: Appended) -> None:
        self._object_number = object_number
        self._extent = extent
        self._state = state
        self._appended = appended
        self.offset = state.planned_next_offset
        self.position = extent.position
        self._start_offset, self._start_position = self.offset, self.position
        self._latest_ms = -1

    def pass_batch(self, batch: BatchEntry, *, is_appended: bool) -> None:
        """Move on past a batch, which either belongs to the run or ends it."""
        if not is_appended:
            self.end()
            self.position += batch.length
            self._start_position = self.position
            return
        self.offset += batch.offset_count
        self.position += batch.length
        self._latest_ms = max(self._latest_ms, batch.timestamp_ms_max)

    def end(self) -> None:
        """Plan the run as an extent of the index, unless it is empty."""
        length = self.position - self._start_position
        if length:
            self._appended.extents.append(
                IndexedExtent(
                    self._state.partition_id,
                    self._start_offset,
                    self.offset,
                    self._object_number,
                    self._start_position,
                    length,
                    min(self._extent.timestamp_ms_min, self._latest_ms),
                    self._latest_ms,
                )
            )
            self._appended.states.append(self._state)
            self._state.planned_next_offset = self.offset
            self._state.planned_size_bytes += length
        self._start_offset, self._start_position, self._latest_ms = self.offset, self.position, -1
