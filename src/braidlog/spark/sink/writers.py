"""The writers behind `df.write` and `df.writeStream` with `format("braidlog")`.

Executors upload objects, which are not part of the log yet. Then the driver asks the control plane to sequence all of
them in one transaction, under the name of the writer and the number of the batch. For a stream these are the
checkpoint's query id and the micro-batch, which survive a restart of the driver. So a batch that Spark repeats is in
the log once, whatever was uploaded for it. The sweeper deletes what failed attempts, or attempts that lost a race, have
uploaded.
"""

from collections.abc import Iterator

import pyarrow as pa  # type: ignore[import-untyped,unused-ignore]
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from braidlog.control.interface import CommitObject, CommitObjects, CommittedObjects
from braidlog.runtime.entropy import SystemEntropy
from braidlog.spark.errors import JobError, SchemaError, missing_topic, readable_errors
from braidlog.spark.link import link_to
from braidlog.spark.micro_batch import current_micro_batch
from braidlog.spark.options import WriteOptions

COMMIT_TIMEOUT_S = 120.0
FOOTERS_BYTES_MAX = 200 * 1024 * 1024

_TEXT = (BinaryType, StringType)
_COLUMN_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "key": _TEXT,
    "value": _TEXT,
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, ByteType),
    "timestamp": (TimestampType, TimestampNTZType, LongType),
    "headers": (ArrayType,),
}


class TaskResult(WriterCommitMessage):
    """The objects that the successful attempt at a task has uploaded, and their batch."""

    def __init__(self, writer_id: str, batch_id: int, objects: list[CommitObject], record_count: int) -> None:
        self.writer_id = writer_id
        self.batch_id = batch_id
        self.objects = objects
        self.record_count = record_count


def check_columns(schema: StructType, topic: str) -> None:
    """Check that a DataFrame can become records.

    Other columns are ignored, as in Spark's Kafka sink.
    """
    names = set(schema.fieldNames())
    if "value" not in names:
        raise SchemaError(
            f"the DataFrame has no column value, only {', '.join(schema.fieldNames())}",
            help='Add one, for example with selectExpr("to_json(struct(*)) AS value").',
        )
    if not topic and "topic" not in names:
        raise SchemaError("no topic is named", help='Use option("topic", "name"), or add a column "topic".')
    for field in schema.fields:
        allowed = _COLUMN_TYPES.get(field.name)
        if allowed is None or isinstance(field.dataType, (*allowed, NullType)):
            continue
        words = " or ".join(kind.typeName() for kind in allowed)
        raise SchemaError(
            f"the column {field.name} is {field.dataType.simpleString()}, and must be {words}",
            help=f'Cast it: withColumn("{field.name}", col("{field.name}").cast("{allowed[-1].typeName()}"))',
        )
    if "headers" in names and not isinstance(schema["headers"].dataType, NullType):
        _check_headers(schema["headers"].dataType)


def check_topic(options: WriteOptions) -> None:
    """Check on the driver that the topic exists, before any task runs."""
    if not options.topic:
        return
    link = link_to(options.address)
    if options.topic not in {topic.name for topic in link.loop.run(link.snapshot()).topics}:
        raise missing_topic(options.topic)


def _check_headers(kind: DataType) -> None:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if (
        not isinstance(element, StructType)
        or element.fieldNames() != ["key", "value"]
        or not isinstance(element["key"].dataType, StringType)
        or not isinstance(element["value"].dataType, BinaryType)
    ):
        raise SchemaError(
            f"the column headers is {kind.simpleString()}", help="It must be array<struct<key: string, value: binary>>."
        )


def upload_rows(options: WriteOptions, writer_id: str, batch_id: int, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    # Imported here, because the compiled encoder takes seconds to load, and the driver never needs it.
    from braidlog.spark.sink.uploader import TaskUploader

    context = TaskContext.get()
    with readable_errors():
        uploader = TaskUploader(
            link_to(options.address),
            options,
            lease_name(writer_id, batch_id),
            turn=context.partitionId() if context is not None else 0,
        )
        uploaded = uploader.upload(batches)
        return TaskResult(writer_id, batch_id, uploaded.objects, uploaded.record_count)


def lease_name(writer_id: str, batch_id: int) -> str:
    return f"{writer_id}/{batch_id}"


def commit_results(options: WriteOptions, results: list[TaskResult]) -> CommittedObjects | None:
    """Have everything that the tasks uploaded sequenced, once.

    None: there is nothing to commit.
    """
    objects = [each for result in results for each in result.objects]
    if not objects:
        return None
    writers = {(result.writer_id, result.batch_id) for result in results}
    if len(writers) != 1:
        raise JobError(f"a commit has tasks of {len(writers)} batches: {sorted(writers)}")
    if sum(len(each.footer) for each in objects) > FOOTERS_BYTES_MAX:
        raise JobError(
            f"{len(objects)} objects are too many for one commit",
            help="Write smaller batches, or larger objects (option objectBytes).",
        )
    writer_id, batch_id = writers.pop()
    link = link_to(options.address)
    request = CommitObjects(writer_id, batch_id, objects, lease_name(writer_id, batch_id))
    answer: CommittedObjects = link.loop.run(link.ask("commit_objects", request, timeout_s=COMMIT_TIMEOUT_S))
    if answer.error_code:
        raise JobError(
            f"batch {batch_id} of {writer_id} was refused: {answer.error_message} (Kafka error {answer.error_code})",
            help="Nothing of it is in the log.",
        )
    return answer


def _arrived(messages: list[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message for message in messages if isinstance(message, TaskResult)]


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        check_topic(options)
        self._options = options
        # Chosen on the driver, once per job. A job that runs again is a different writer, unless the user names it.
        self._writer_id = options.writer_id or f"job-{SystemEntropy().token(16).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return upload_rows(self._options, self._writer_id, self._options.batch_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with readable_errors():
            commit_results(self._options, _arrived(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing.

        Spark also calls this after a commit whose answer was lost, and then all is in the log.

        The sweeper deletes what is not in the log.
        """


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        check_topic(options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        query_id, number = current_micro_batch()
        return upload_rows(self._options, query_id, number, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        with readable_errors():
            results = _arrived(messages)
            strange = [result.batch_id for result in results if result.batch_id != batchId]
            if strange:
                raise JobError(f"the commit of micro-batch {batchId} has tasks of micro-batch {strange[0]}")
            commit_results(self._options, results)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing, as in `BatchWriter.abort`."""
