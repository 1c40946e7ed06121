"""The metadata seam: where the control plane keeps what must survive it.

SQL is plain and portable, with `?` for parameters. Only the holder of the newest fencing epoch can write or read, so a
process that was replaced while it slept can do no harm.
"""

from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, Protocol, TypeAlias, TypeVar

from braidlog.runtime.errors import BraidError, InvalidSetting, Remedy

T = TypeVar("T")

Value: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = tuple[Any, ...]


class MetadataError(BraidError):
    """The metadata store refused or failed. Nothing of the transaction was kept."""

    remedy = Remedy.RETRY


class MetadataFull(MetadataError):
    """No room is left where the metadata lives."""


class MetadataUnavailable(MetadataError):
    """The disk or the server behind the metadata failed. Nobody knows whether the last transaction was kept."""

    remedy = Remedy.CHECK_OUTCOME


class MetadataBusy(MetadataError):
    """Another process held the store for too long."""


class MetadataConflict(MetadataError):
    """A row that must be unique is there already, or one that must exist is not."""

    remedy = Remedy.REFRESH


class MetadataDamaged(MetadataError):
    """The file is not a metadata store, or is corrupt."""

    remedy = Remedy.GIVE_UP


class SchemaTooNew(MetadataError):
    """The store was written by a newer release."""

    remedy = Remedy.GIVE_UP


class Transaction(Protocol):
    """Statements of one transaction. Valid only inside the function that was given it."""

    def execute(self, sql: str, parameters: Sequence[Value] = ()) -> int:
        """Run one statement and return how many rows it changed."""
        ...

    def executemany(self, sql: str, rows: Iterable[Sequence[Value]]) -> None: ...

    def query(self, sql: str, parameters: Sequence[Value] = ()) -> list[Row]: ...


class MetadataStore(Protocol):
    @property
    def fencing_epoch(self) -> int:
        """The epoch that this holder acquired; 0 before it has."""
        ...

    async def acquire_fencing_epoch(self) -> int:
        """Become the one holder: everyone who acquired earlier is fenced from now on."""
        ...

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """Run `fn` in one durable transaction, off the event loop. Raises `Fenced` where a newer holder exists.

        Whatever `fn` raises rolls everything back. `fn` must not touch state that the event loop uses meanwhile. A
        cancelled caller does not stop a transaction that has begun.
        """
        ...

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """Run `fn` over one consistent state, off the event loop, without holding up writers."""
        ...

    async def close(self) -> None: ...


def load_migrations() -> list[tuple[int, str]]:
    """The schema's steps, (version, SQL), in order. File names start with the version: `0001_core.sql`."""
    return sorted(
        (int(entry.name.split("_", 1)[0]), entry.read_text(encoding="utf-8"))
        for entry in files("braidlog.control").joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    )


async def open_metadata(url: str) -> MetadataStore:
    """Open `sqlite:///path/to/file` or `sqlite://` (in memory, for tests), and bring its schema up to date."""
    scheme, separator, rest = url.partition("://")
    if scheme != "sqlite" or not separator or (rest and not rest.startswith("/")):
        raise InvalidSetting(
            f"{url!r} is not a metadata store",
            help="Use sqlite:///absolute/path/to/file, or sqlite:// for one in memory that is lost at exit.",
        )
    from braidlog.control.sqlite import SqliteMetadata

    return await SqliteMetadata.open(rest)
