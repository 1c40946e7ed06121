"""What travels down the write path: one request per record batch, one draft per object."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from braidlog.objects.layout import BatchEntry
from braidlog.objects.store import Bytes


class WriteRequest:
    """One record batch on its way to a partition, and what became of it.

    `on_done` is called once, when `error_code`, `base_offset` and `log_start_offset` are final.
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
    )

    def __init__(
        self,
        topic_id: bytes,
        partition: int,
        records: Bytes,
        entry: BatchEntry,
        timestamp_ms_min: int,
        append_ms: int,
        on_done: Callable[["WriteRequest"], None],
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.records: Bytes = records
        self.entry = entry
        self.timestamp_ms_min = timestamp_ms_min
        self.append_ms = append_ms
        """The time that the log gave it, where the topic wants that; else -1."""
        self.on_done = on_done
        self.error_code: int = ErrorCode.none
        self.error_message: str | None = None
        self.base_offset = -1
        self.log_start_offset = -1

    def fail(self, error_code: int, message: str) -> None:
        self.error_code = error_code
        self.error_message = message
        self.on_done(self)


@dataclass(eq=False, slots=True)
class Draft:
    """The requests of one object, by partition, from the moment that the batcher closes it until it is released.

    A draft is *settled* when its own fate is known, and *released* when that holds for everything before it in its
    partitions too. Only a release lets the next one be sequenced: a draft that fails early must not let its successors
    overtake those that are still on their way.
    """

    groups: dict[tuple[bytes, int], list[WriteRequest]]
    """By (topic id, partition); within one, in the order of arrival."""
    size_bytes: int
    key: str = ""
    packed: Bytes = b""
    footer: bytes = b""
    is_settled: bool = False
    is_released: bool = False
    predecessors_open: int = 0
    """Earlier drafts with a partition in common that are not released yet."""
    successors: list["Draft"] = field(default_factory=list)
    _turn: asyncio.Future[None] | None = None

    def follow(self, earlier: "Draft") -> None:
        """Be sequenced after `earlier`, however late its upload finishes."""
        if not earlier.is_released:
            earlier.successors.append(self)
            self.predecessors_open += 1

    async def wait_turn(self) -> None:
        """Return when everything that must be sequenced before this draft has been, or never will be."""
        if self.predecessors_open:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

    def settle(self) -> None:
        """Nothing more will happen to this draft."""
        self.is_settled = True
        self.packed = b""
        # Not recursive: behind an object that was stuck for long there may be a thousand others.
        released = [self] if not self.predecessors_open else []
        while released:
            draft = released.pop()
            draft.is_released = True
            for following in draft.successors:
                following.predecessors_open -= 1
                if not following.predecessors_open:
                    following._start_turn()
                    if following.is_settled:
                        released.append(following)
            draft.successors = []

    def _start_turn(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def fail(self, error_code: int, message: str) -> None:
        for requests in self.groups.values():
            for request in requests:
                request.fail(error_code, message)
        self.settle()
