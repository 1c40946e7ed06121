"""`df.write` and `df.writeStream` with `format("braidlog")`.

Executors upload objects, and nothing of them is in the log. The driver then has all of them sequenced at once, by the
name of the writer and the number of the batch: for a stream the checkpoint's query id and the micro-batch, both of
which survive a restart of the driver. So a batch that Spark repeats is in the log once, whatever was uploaded for it.
What was uploaded in vain, by attempts that failed or lost a race, is swept later.
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
from braidlog.spark.errors import JobError, SchemaError, told_to_people
from braidlog.spark.link import link_to
from braidlog.spark.options import WriteOptions

COMMIT_TIMEOUT_S = 120.0
FOOTERS_BYTES_MAX = 200 * 1024 * 1024

QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""What Spark tells every task of a streaming query. The query id is the one in the checkpoint's `metadata` file."""

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
    """What a task's one successful attempt has uploaded, and for which batch."""

    def __init__(self, writer_id: str, batch_id: int, objects: list[CommitObject], record_count: int) -> None:
        self.writer_id = writer_id
        self.batch_id = batch_id
        self.objects = objects
        self.record_count = record_count


def check_columns(schema: StructType, topic: str) -> None:
    """Whether a DataFrame can become records. Other columns are left out, as Spark's Kafka sink does."""
    names = set(schema.fieldNames())
    if "value" not in names:
        raise SchemaError(
            f"a DataFrame with the columns {', '.join(schema.fieldNames())} has no value",
            help='Make one, for example with selectExpr("to_json(struct(*)) AS value").',
        )
    if not topic and "topic" not in names:
        raise SchemaError("no topic is named", help='option("topic", "name"), or a column "topic".')
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


def _check_headers(kind: DataType) -> None:
    element = kind.elementType if isinstance(kind, ArrayType) else None
    if (
        not isinstance(element, StructType)
        or element.fieldNames() != ["key", "value"]
        or not isinstance(element["key"].dataType, StringType)
        or not isinstance(element["value"].dataType, BinaryType)
    ):
        raise SchemaError(
            f"the column headers is {kind.simpleString()}", help="array<struct<key: string, value: binary>>"
        )


def upload_rows(options: WriteOptions, writer_id: str, batch_id: int, batches: Iterator[pa.RecordBatch]) -> TaskResult:
    # Here, because the compiled encoder takes seconds to load, and the driver never needs it.
    from braidlog.spark.uploading import TaskUploader

    context = TaskContext.get()
    with told_to_people():
        uploader = TaskUploader(
            link_to(options.place),
            options,
            lease_name(writer_id, batch_id),
            turn=context.partitionId() if context is not None else 0,
        )
        uploaded = uploader.upload(batches)
        return TaskResult(writer_id, batch_id, uploaded.objects, uploaded.record_count)


def lease_name(writer_id: str, batch_id: int) -> str:
    return f"{writer_id}/{batch_id}"


def commit_results(options: WriteOptions, results: list[TaskResult]) -> CommittedObjects | None:
    """Have everything that the tasks uploaded sequenced, once. None: there is nothing."""
    objects = [each for result in results for each in result.objects]
    if not objects:
        return None
    writers = {(result.writer_id, result.batch_id) for result in results}
    if len(writers) != 1:
        raise JobError(f"tasks of {len(writers)} batches came together: {sorted(writers)}")
    if sum(len(each.footer) for each in objects) > FOOTERS_BYTES_MAX:
        raise JobError(
            f"{len(objects)} objects are too many for one commit",
            help="Write in smaller batches, or in larger objects: option objectBytes.",
        )
    writer_id, batch_id = writers.pop()
    link = link_to(options.place)
    request = CommitObjects(writer_id, batch_id, objects, lease_name(writer_id, batch_id))
    answer: CommittedObjects = link.run(link.ask("commit_objects", request, timeout_s=COMMIT_TIMEOUT_S))
    if answer.error_code:
        raise JobError(
            f"batch {batch_id} of {writer_id} was refused: {answer.error_message} (Kafka's error {answer.error_code})",
            help="Nothing of it is in the log.",
        )
    return answer


def _arrived(messages: list[WriterCommitMessage | None]) -> list[TaskResult]:
    return [message for message in messages if isinstance(message, TaskResult)]


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options
        # Made on the driver, once per job. A job that runs again is another one, unless the user gives it a name.
        self._writer_id = options.writer_id or f"job-{SystemEntropy().token(16).hex()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        return upload_rows(self._options, self._writer_id, self._options.batch_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        with told_to_people():
            commit_results(self._options, _arrived(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Nothing to do: Spark also calls this after a commit whose answer was lost, and then all is in the log. What
        is not, the sweeper removes."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
        batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) if context is not None else None
        if not query_id or batch_id is None:
            raise JobError(
                "Spark does not say which query and micro-batch this task belongs to",
                help="This release of Spark is not supported: use pyspark 4.3.",
            )
        return upload_rows(self._options, query_id, int(batch_id), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        with told_to_people():
            results = _arrived(messages)
            strange = [result.batch_id for result in results if result.batch_id != batchId]
            if strange:
                raise JobError(f"tasks of micro-batch {strange[0]} came with micro-batch {batchId}")
            commit_results(self._options, results)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Nothing to do, as in `BatchWriter.abort`."""
