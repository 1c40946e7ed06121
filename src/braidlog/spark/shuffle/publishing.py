"""Publish and subscribe, outside of Spark: rows through the store, and notifications over any topic.

The topic is whatever can carry a message to the readers of a partition: one of Braidlog's, or of a Kafka cluster,
through the client that the application uses anyway.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, fields

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings, BatchWriter
from braidlog.spark.shuffle.debatcher import BatchReader, Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notifying import Notification

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, int | str]).decode
_NAMES = {field.name for field in fields(Notification)}


def encode_notification(notification: Notification) -> bytes:
    """A message of about 200 bytes. Readers pass over fields that they do not know."""
    return _encode(asdict(notification))


def decode_notification(message: bytes) -> Notification:
    try:
        found = {name: value for name, value in _decode(message).items() if name in _NAMES}
        return Notification(**found)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, TypeError) as error:
        raise DataLoss(f"a message is not a notification of a batch: {error}") from error


class Publisher:
    """Rows to subscribers. A message is sent only when its batch is in the store.

    `send(partition, message)` returns when the message is safe. `flush` is the commit: when it returns, all that was
    published before it is in the store, and subscribers were told. Where it raises, what it covered is to be published
    again, by another publisher; whether some of it got through is unknown, as with any producer.
    """

    def __init__(
        self,
        store: BatchWriter,
        settings: BatcherSettings,
        partitions: int,
        send: Callable[[int, bytes], Awaitable[object]],
        *,
        clock: Clock,
        entropy: Entropy,
        zones: Sequence[str] = ("",),
    ) -> None:
        self._send = send
        self._tasks = TaskGroup("publisher", errors_are_awaited=True)
        self._sending = asyncio.Lock()
        self._failure: BaseException | None = None
        self._batcher = Batcher(
            store,
            settings,
            [zones[partition % len(zones)] for partition in range(partitions)],
            clock=clock,
            entropy=entropy,
            on_uploaded=lambda: self._tasks.spawn(self._send_finished()),
        )

    async def publish(self, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> None:
        """Rows, with the partition of each. Waits while as many uploads are under way as may be."""
        self._raise_failure()
        await self._batcher.add(rows, partitions)

    async def _send_finished(self) -> None:
        async with self._sending:
            try:
                finished = self._batcher.take_finished()
                await asyncio.gather(*(self._send(each.partition, encode_notification(each)) for each in finished))
            except BaseException as error:
                self._failure = self._failure or error
                raise

    async def flush(self) -> None:
        self._raise_failure()
        await self._batcher.finish()
        await self._tasks.wait_all()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise JobError(f"subscribers could not be told: {self._failure}") from self._failure

    async def close(self) -> None:
        """Give up what was not flushed."""
        await self._batcher.close()
        await self._tasks.cancel_all()


class Subscriber:
    """Rows of the partitions whose messages it is given."""

    def __init__(self, store: BatchReader, settings: DebatcherSettings | None = None) -> None:
        self._debatcher = Debatcher(store, settings or DebatcherSettings())

    async def rows(self, messages: Iterable[bytes]) -> AsyncIterator[pa.RecordBatch]:
        """All rows of these messages. When it ends, and not before, the messages may be committed."""
        async for rows in self._debatcher.rows([decode_notification(message) for message in messages]):
            yield rows
