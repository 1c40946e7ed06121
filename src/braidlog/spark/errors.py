"""Errors for users of Spark, which shows only the text of an exception."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from braidlog.runtime.errors import BraidError, Remedy


class JobError(BraidError):
    """Makes a Spark job fail. Its text includes the help line."""

    remedy = Remedy.FIX_INPUT

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n{self.help}" if self.help else message


class DataLoss(JobError):
    """Records that should be read are gone."""

    remedy = Remedy.GIVE_UP


class SchemaError(JobError):
    """A DataFrame that does not fit a topic."""


def missing_topic(*names: str) -> JobError:
    return JobError(f"there is no topic {', '.join(names)}", help=f"Create it first: braid topic create {names[0]}")


def warn(message: str) -> None:
    """Log a warning where users look for it.

    It is in the log of the driver or of the executor.
    """
    logging.getLogger("braidlog").warning(message)


@contextmanager
def readable_errors(what: str = "") -> Iterator[None]:
    """Raise Braidlog's errors with their help in the text.

    In Spark's workers, the user sees no traceback.
    """
    prefix = f"{what}: " if what else ""
    try:
        yield
    except JobError:
        _hide_traceback()
        raise
    except BraidError as error:
        _hide_traceback()
        raise JobError(f"{prefix}{error}", help=error.help) from error
    except Exception as error:
        # Imported here, because the driver starts many short processes, and the record codec is slow to load.
        from braidlog.records.errors import InvalidBatch

        if not isinstance(error, InvalidBatch):
            raise
        _hide_traceback()
        raise JobError(
            f"{prefix}stored records are damaged: {error.message}",
            help="braid doctor checks the store. failOnDataLoss does not apply to damaged records.",
        ) from error


def _hide_traceback() -> None:
    """Make Spark show only the text of the error that is about to be raised.

    A worker ends with the first error that it reports, so this affects no other error. Errors of a user's own function
    keep their traceback.
    """
    if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
