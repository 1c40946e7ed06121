"""Errors as people meet them in a Spark job: Spark shows nothing but the text of an exception."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from braidlog.runtime.errors import BraidError, Remedy


class JobError(BraidError):
    """What makes a Spark job fail, with what to do about it in its text."""

    remedy = Remedy.FIX_INPUT

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n{self.help}" if self.help else message


class DataLoss(JobError):
    """Records that were to be read are not there any more."""

    remedy = Remedy.GIVE_UP


class SchemaError(JobError):
    """A DataFrame that cannot be written to a topic."""


def warn(message: str) -> None:
    """For the log of the driver or of an executor, which is where a job's warnings are looked for."""
    logging.getLogger("braidlog").warning(message)


@contextmanager
def told_to_people(what: str = "") -> Iterator[None]:
    """Whatever Braidlog raises inside, with its help in the text."""
    prefix = f"{what}: " if what else ""
    try:
        yield
    except JobError:
        raise
    except BraidError as error:
        raise JobError(f"{prefix}{error}", help=error.help) from error
    except Exception as error:
        # Here, because the driver's processes are many and short, and the record codec is slow to load.
        from braidlog.records.errors import InvalidBatch

        if not isinstance(error, InvalidBatch):
            raise
        raise JobError(
            f"{prefix}stored records are damaged: {error.message}",
            help="braid doctor checks the store. failOnDataLoss does not pass over damage.",
        ) from error
