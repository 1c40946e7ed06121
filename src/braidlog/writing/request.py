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
        on_done: Callable[["WriteRequest"], None],
    ) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.records: Bytes = records
        self.entry = entry
        self.timestamp_ms_min = timestamp_ms_min
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
    """The requests of one object, by partition, from the moment that the batcher closes it until it is settled."""

    groups: dict[tuple[bytes, int], list[WriteRequest]]
    """By (topic id, partition); within one, in the order of arrival."""
    size_bytes: int
    predecessors: list["Draft"] = field(default_factory=list)
    """Earlier drafts with a partition in common: sequenced first, however late their upload finishes."""
    key: str = ""
    packed: bytes = b""
    footer: bytes = b""
    is_settled: bool = False
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def settle(self) -> None:
        """Nothing more will happen to this draft: whoever waits for it may go on."""
        self.is_settled = True
        self.predecessors.clear()
        self.packed = b""
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_settled(self) -> None:
        if not self.is_settled:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            await waiter

    def fail(self, error_code: int, message: str) -> None:
        for requests in self.groups.values():
            for request in requests:
                request.fail(error_code, message)
        self.settle()
