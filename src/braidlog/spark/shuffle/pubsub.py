"""Publish and subscribe without Spark.

Rows go through the store, and notifications over any topic. The topic may be anything that carries a message to the
readers of a partition: a topic of Braidlog or of a Kafka cluster, through the client that the application uses anyway.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, fields

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]

from braidlog.cache.layers import StoreLayer
from braidlog.objects.open import open_store
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.runtime.tasks import TaskGroup
from braidlog.spark.errors import DataLoss, JobError
from braidlog.spark.shuffle.batcher import Batcher, BatcherSettings, BatchWriter
from braidlog.spark.shuffle.debatcher import BatchReader, Debatcher, DebatcherSettings
from braidlog.spark.shuffle.notification import Notification

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, int | str]).decode
_NAMES = {field.name for field in fields(Notification)}


def encode_notification(notification: Notification) -> bytes:
    """Encode a notification as a message of about 200 bytes.

    Readers ignore fields that they do not know.
    """
    return _encode(asdict(notification))


def decode_notification(message: bytes) -> Notification:
    try:
        found = {name: value for name, value in _decode(message).items() if name in _NAMES}
        return Notification(**found)  # type: ignore[arg-type]
    except (msgspec.MsgspecError, TypeError) as error:
        raise DataLoss(f"a message is not a notification of a batch: {error}") from error


class Publisher:
    """Publishes rows to subscribers.

    A message is sent only when its batch is in the store.

    `send(partition, message)` returns when the message is safe. `flush` is the commit: when it returns, all rows
    published before are in the store, and their messages are sent. If it raises, publish those rows again with another
    publisher; whether some of them got through is unknown, as with any producer.
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
        self._own_store: Store | None = None
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

    @classmethod
    def at(
        cls,
        store_url: str,
        settings: BatcherSettings,
        partitions: int,
        send: Callable[[int, bytes], Awaitable[object]],
        *,
        zones: Sequence[str] = ("",),
    ) -> "Publisher":
        """Make one that opens the store itself, and closes it in `close`."""
        clock, entropy = SystemClock(), SystemEntropy()
        store = open_store(store_url, clock=clock, entropy=entropy.fork("store"))
        publisher = cls(StoreLayer(store), settings, partitions, send, clock=clock, entropy=entropy, zones=zones)
        publisher._own_store = store
        return publisher

    async def publish(self, rows: pa.RecordBatch, partitions: npt.NDArray[np.int32]) -> None:
        """Publish rows, with the partition of each.

        Waits while the maximum number of uploads is under way.
        """
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
            raise JobError(f"a notification could not be sent: {self._failure}") from self._failure

    async def close(self) -> None:
        """Discard what was not flushed."""
        await self._batcher.close()
        await self._tasks.cancel_all()
        if self._own_store is not None:
            await self._own_store.close()


class Subscriber:
    """Reads the rows that messages of a publisher announce."""

    def __init__(self, store: BatchReader, settings: DebatcherSettings | None = None) -> None:
        self._debatcher = Debatcher(store, settings or DebatcherSettings())
        self._own_store: Store | None = None

    @classmethod
    def at(cls, store_url: str, settings: DebatcherSettings | None = None) -> "Subscriber":
        """Make one that opens the store itself, and closes it in `close`."""
        store = open_store(store_url, clock=SystemClock(), entropy=SystemEntropy())
        subscriber = cls(StoreLayer(store), settings)
        subscriber._own_store = store
        return subscriber

    async def rows(self, messages: Iterable[bytes]) -> AsyncIterator[pa.RecordBatch]:
        """Yield all rows of these messages.

        Commit the messages' offsets only after the end.
        """
        async for rows in self._debatcher.rows([decode_notification(message) for message in messages]):
            yield rows

    async def close(self) -> None:
        if self._own_store is not None:
            await self._own_store.close()
