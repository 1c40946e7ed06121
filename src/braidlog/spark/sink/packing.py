"""Packs rows of many partitions into the bytes of one object. Pure."""

from dataclasses import dataclass

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from kio.schema.errors import ErrorCode

from braidlog.objects.format import encode_footer, encode_trailer
from braidlog.objects.layout import KAFKA_BATCHES, BatchEntry, ExtentEntry, Footer
from braidlog.records.arrow_encoder import EncodedBatches, encode_batches
from braidlog.records.batch import TimestampType
from braidlog.records.codec import CODEC_NAMES, Codec
from braidlog.records.errors import InvalidBatch
from braidlog.runtime.limits import BATCHES_PER_OBJECT_MAX, EXTENTS_PER_OBJECT_MAX, OBJECT_BYTES_MAX
from braidlog.spark.errors import JobError
from braidlog.spark.sink.routing import Topic

BATCH_BYTES_TARGET = 1024 * 1024
"""Only a record that is larger gets a larger batch, because consumers fetch whole batches."""
EXTENTS_BYTES_MAX = OBJECT_BYTES_MAX // 2


@dataclass(frozen=True, slots=True)
class PackedExtent:
    topic_id: bytes
    partition: int
    encoded: EncodedBatches


@dataclass(frozen=True, slots=True)
class PackedObject:
    data: bytes
    footer: bytes
    record_count: int


def encode_rows(topic: Topic, partition: int, rows: pa.Table, *, compression: str, now_ms: int) -> PackedExtent:
    """Encode the rows of one partition as record batches, by the topic's settings."""
    settings = topic.settings
    if settings.compacted and ("key" not in rows.schema.names or rows.column("key").null_count):
        raise JobError(
            f"{topic.name} is compacted, but a row has no key", help="Every record of a compacted topic needs a key."
        )
    stamped = settings.log_append_time
    encoded = _encode(
        topic,
        rows,
        _codec(topic, compression),
        now_ms,
        TimestampType.LOG_APPEND if stamped else TimestampType.CREATE,
    )
    if not stamped:
        _check_times(topic, encoded, now_ms)
    return PackedExtent(topic.topic_id, partition, encoded)


def _codec(topic: Topic, compression: str) -> Codec:
    """Choose the codec as an agent does.

    The topic decides, unless it leaves that to producers.
    """
    chosen = topic.settings.compression_type
    if chosen == "producer":
        return CODEC_NAMES[compression or "none"]
    return CODEC_NAMES[chosen.replace("uncompressed", "none")]


def _encode(topic: Topic, rows: pa.Table, codec: Codec, now_ms: int, timestamp_type: TimestampType) -> EncodedBatches:
    limit = topic.settings.max_message_bytes
    for batch_bytes_max in (min(limit, BATCH_BYTES_TARGET), EXTENTS_BYTES_MAX):
        try:
            encoded = encode_batches(
                rows,
                batch_bytes_max=batch_bytes_max,
                codec=codec,
                level=topic.settings.compression_level,
                timestamp_ms_default=now_ms,
                timestamp_type=timestamp_type,
            )
        except InvalidBatch as error:
            if error.error_code != ErrorCode.message_too_large:
                raise JobError(f"{topic.name}: {error.message}") from error
            continue
        # A record over the limit may be below it when compressed.
        longest = max(batch.length for batch in encoded.batches)
        if longest <= limit:
            return encoded
        if batch_bytes_max == EXTENTS_BYTES_MAX and rows.num_rows > 1:
            return _joined(
                [_encode(topic, rows.slice(row, 1), codec, now_ms, timestamp_type) for row in range(rows.num_rows)]
            )
    raise JobError(
        f"a record for {topic.name} is over its max.message.bytes of {limit}",
        help=f"braid topic alter {topic.name} --set max.message.bytes=… raises the limit.",
    )


def _joined(parts: list[EncodedBatches]) -> EncodedBatches:
    return EncodedBatches(
        memoryview(b"".join(part.data for part in parts)),
        sum(part.record_count for part in parts),
        min(part.timestamp_ms_min for part in parts),
        max(part.timestamp_ms_max for part in parts),
        [batch for part in parts for batch in part.batches],
    )


def _check_times(topic: Topic, encoded: EncodedBatches, now_ms: int) -> None:
    settings = topic.settings
    earliest = now_ms - settings.message_timestamp_before_max_ms
    latest = now_ms + settings.message_timestamp_after_max_ms
    for timestamp_ms in (encoded.timestamp_ms_min, encoded.timestamp_ms_max):
        if timestamp_ms != -1 and not max(earliest, 0) <= timestamp_ms <= latest:
            raise JobError(
                f"a record for {topic.name} has the timestamp {timestamp_ms}, which the topic does not accept",
                help="message.timestamp.before.max.ms and message.timestamp.after.max.ms set the range.",
            )


def pack_object(
    extents: list[PackedExtent], *, nonce: bytes, write_epoch: int, incarnation: str, created_ms: int
) -> PackedObject:
    """Pack extents into an object. Each partition has at most one of them."""
    entries: list[ExtentEntry] = []
    parts: list[bytes | memoryview] = []
    position = 0
    for extent in sorted(extents, key=lambda each: (each.topic_id, each.partition)):
        encoded = extent.encoded
        length = len(encoded.data)
        entries.append(
            ExtentEntry(
                extent.topic_id,
                extent.partition,
                position,
                length,
                encoded.record_count,
                encoded.timestamp_ms_min,
                encoded.timestamp_ms_max,
                KAFKA_BATCHES,
                [BatchEntry(*batch) for batch in encoded.batches],
            )
        )
        parts.append(encoded.data)
        position += length
    footer = encode_footer(Footer(nonce, write_epoch, incarnation, created_ms, "", entries))
    parts += (footer, encode_trailer(footer, nonce))
    return PackedObject(b"".join(parts), footer, sum(entry.record_count for entry in entries))


def group_extents(extents: list[PackedExtent]) -> list[list[PackedExtent]]:
    """Distribute extents over objects, with as many in each as the format allows."""
    groups: list[list[PackedExtent]] = []
    room_bytes = room_batches = 0
    for extent in extents:
        size_bytes, batch_count = len(extent.encoded.data), len(extent.encoded.batches)
        if (
            not groups
            or size_bytes > room_bytes
            or batch_count > room_batches
            or len(groups[-1]) >= EXTENTS_PER_OBJECT_MAX
        ):
            groups.append([])
            room_bytes, room_batches = EXTENTS_BYTES_MAX, BATCHES_PER_OBJECT_MAX
        groups[-1].append(extent)
        room_bytes -= size_bytes
        room_batches -= batch_count
    return groups
