"""The micro-batch of a streaming query that a Spark task belongs to."""

from typing import NamedTuple

from pyspark import TaskContext

from braidlog.spark.errors import JobError

QUERY_ID_PROPERTY = "sql.streaming.queryId"
BATCH_ID_PROPERTY = "streaming.sql.batchId"
"""Spark sets both for every task of a streaming query. The query id is the one in the checkpoint's `metadata` file."""


class MicroBatchId(NamedTuple):
    query_id: str
    number: int


def current_micro_batch() -> MicroBatchId:
    """Return the micro-batch of the task that runs here."""
    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) if context is not None else None
    if not query_id or batch_id is None:
        raise JobError(
            "Spark does not say which query and micro-batch this task belongs to",
            help="This release of Spark is not supported: use pyspark 4.3.",
        )
    return MicroBatchId(query_id, int(batch_id))
