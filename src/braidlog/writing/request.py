"""Requests and drafts, which travel along the write path.

There is one request per record batch, and one draft per object.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from braidlog.objects.layout import BatchEntry
from braidlog.objects.store import Bytes
from braidlog.writing.order_node import OrderNode


class WriteRequest:
    """One record batch on its way to a partition, and its result.

    Whoever knows the result sets `error_code`, `base_offset` and `log_start_offset`, and calls `way_back` once. From
    there the request passes the result stages that it was sent through (see `writing.path`). The last of them calls
    `on_done`, which is the client's.
    """

    __slots__ = (
        "append_ms",
        "base_offset",
        "entry",
        "error_code",
        "error_message",
        "log_start_offset",
        "on_done",
        "partition",
        "records",
        "timestamp_ms_min",
        "topic_id",
        "way_back",
    )

    def __init__(
        self,
        topic_id: bytes,
        partition: int,
        records: Bytes,
        entry: BatchEntry,
        timestamp_ms_min: int,
        append_ms: int,
        on_done: "Done",
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.records: Bytes = records
        self.entry = entry
        self.timestamp_ms_min = timestamp_ms_min
        self.append_ms = append_ms
        """The time that the log gave it, where the topic wants that; else -1."""
        self.on_done = on_done
        self.way_back = on_done
        """The first result stage on the way back; the client itself if no stage wants to see the result."""
        self.error_code: int = ErrorCode.none
        self.error_message: str | None = None
        self.base_offset = -1
        self.log_start_offset = -1

    def fail(self, error_code: int, message: str) -> None:
        self.error_code = error_code
        self.error_message = message
        self.way_back(self)


Done: TypeAlias = Callable[[WriteRequest], None]


@dataclass(eq=False, slots=True)
class Draft(OrderNode):
    """The requests of one object, by partition.

    A draft lives from the moment that the batcher closes it until it is released.
    """

    partitions: dict[tuple[bytes, int], list[WriteRequest]] = field(default_factory=dict)
    """Requests by (topic id, partition); within one, in the order of arrival."""
    size_bytes: int = 0
    key: str = ""
    packed: Bytes = b""
    footer: bytes = b""
    on_answered: Callable[[], None] | None = None

    def answered(self) -> None:
        """All requests have their results.

        Called early by whoever answers before sequencing, else by `settle`.
        """
        self.packed = b""
        called, self.on_answered = self.on_answered, None
        if called is not None:
            called()

    def settle(self) -> None:
        OrderNode.settle(self)
        self.answered()

    def fail(self, error_code: int, message: str) -> None:
        for requests in self.partitions.values():
            for request in requests:
                request.fail(error_code, message)
        self.settle()
