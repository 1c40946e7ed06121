"""The metadata seam: where the control plane keeps its durable state.

SQL is plain and portable, with `?` for parameters. Only the holder of the newest fencing epoch can write or read, so a
process that was replaced while it slept can do no harm.

A transaction is first *planned* and then *durable*. Whoever holds the state lock plans, and does not wait: whatever is
planned while the store is busy becomes durable together. Nothing that follows from a planned transaction may leave the
process before it is durable: `control.runner` holds answers back, `control.log.feed` holds events back, and whoever
deletes objects awaits `durable` first. A planned transaction is never taken back. If the store fails, it is tried
again; if it can never be stored, the process ends without having told anybody.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from braidlog.control.metadata.progress import Progress
from braidlog.objects.store import Store
from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import BraidError, InvalidSetting, Remedy

T = TypeVar("T")

Value: TypeAlias = int | float | str | bytes | None
Row: TypeAlias = tuple[Any, ...]

HEARTBEAT_S = 1.0
"""How often the holder of shared metadata shows that it is alive, if nothing else that it stores does."""
FOLLOW_INTERVAL_S = 0.25
"""How often a process that waits for shared metadata looks at its holder."""


class MetadataError(BraidError):
    """The metadata store refused or failed. Nothing of the transaction was kept."""

    remedy = Remedy.RETRY


class MetadataFull(MetadataError):
    """The place that holds the metadata is full."""


class MetadataUnavailable(MetadataError):
    """The disk or the server behind the metadata failed.

    Nobody knows whether the last transaction was kept.
    """

    remedy = Remedy.CHECK_OUTCOME


class MetadataBusy(MetadataError):
    """Another process held the store for too long."""


class MetadataConflict(MetadataError):
    """A row that must be unique exists already, or one that must exist does not."""

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


@runtime_checkable
class SharedMetadata(Protocol):
    """Metadata that several processes can reach: one holds it, others may wait for it."""

    lost: asyncio.Event
    """Set when the holder has found that it no longer holds the metadata, even if nobody has called it."""

    async def wait_vacant(self, *, patient: bool, silent_s: float) -> None:
        """Return when nobody holds the metadata.

        Raises `MetadataBusy` if somebody does, unless `patient`.
        """
        ...


@runtime_checkable
class DeltaFollower(Protocol):
    """Metadata that is a log of numbered deltas in the store."""

    @property
    def delta_number(self) -> int:
        """The newest delta that this process knows of."""
        ...


class MetadataStore(Protocol):
    @property
    def fencing_epoch(self) -> int:
        """The epoch that this holder has acquired; 0 before that."""
        ...

    async def acquire_fencing_epoch(self) -> int:
        """Become the only holder: all earlier holders are fenced from now on."""
        ...

    @property
    def progress(self) -> Progress:
        """What is planned, and what of it is durable."""
        ...

    async def plan(self, fn: Callable[[Transaction], T]) -> T:
        """Run `fn` in one transaction, off the event loop, which becomes durable soon.

        Later transactions and reads of this process see it. Raises `Fenced` if there is a newer holder. If `fn` raises,
        everything is rolled back. `fn` must not touch state that the event loop uses meanwhile. A transaction that has
        begun goes on if its caller is cancelled.
        """
        ...

    async def durable(self) -> None:
        """Return when everything planned so far is durable.

        Raises `MetadataUnavailable` while the store fails: what is planned may become durable later, or never.
        """
        ...

    async def transact(self, fn: Callable[[Transaction], T]) -> T:
        """Do what `plan` does, and return when it is durable."""
        ...

    async def read(self, fn: Callable[[Transaction], T]) -> T:
        """Run `fn` over one consistent state, off the event loop, beside writers.

        It sees everything that was planned before, durable or not.
        """
        ...

    async def peek(self, fn: Callable[[Transaction], T]) -> T:
        """Do what `read` does, for a process that does not hold the metadata.

        The result may be out of date a moment later.
        """
        ...

    async def close(self) -> None: ...


@runtime_checkable
class DumpedMetadata(MetadataStore, Protocol):
    """Metadata that can be dumped whole, so that a copy of it can be kept."""

    async def dump(self) -> bytes:
        """Return the content of a SQLite file with all tables, at one moment.

        Writers and readers go on meanwhile.
        """
        ...


@runtime_checkable
class CopiedMetadata(Protocol):
    """Metadata of which a copy flows to the bucket."""

    async def copied(self) -> None:
        """Return when everything that is committed now is in the copy."""
        ...

    def enforce_lease(self) -> None:
        """From now on, answer only after a look for restores that is not too old."""
        ...

    @property
    def copy_age_s(self) -> float:
        """How long the oldest change waits that the copy lacks; 0: it lacks none."""
        ...

    @property
    def copy_position(self) -> int: ...

    @property
    def copy_trouble(self) -> str:
        """Why the copy does not advance; empty: it does."""
        ...


async def wait_copied(metadata: MetadataStore) -> None:
    """Return when everything planned is durable, and the copy in the bucket has it."""
    await metadata.durable()
    if isinstance(metadata, CopiedMetadata):
        await metadata.copied()


@cache
def load_migrations() -> tuple[tuple[int, str], ...]:
    """Return the migrations of the schema as (version, SQL), in order.

    File names start with the version, as in `0001_core.sql`.
    """
    steps = (
        (int(entry.name.split("_", 1)[0]), entry.read_text(encoding="utf-8"))
        for entry in files("braidlog.control.metadata").joinpath("migrations").iterdir()
        if entry.name.endswith(".sql")
    )
    return tuple(sorted(steps))


@dataclass(frozen=True, slots=True)
class BucketParts:
    """The parts that metadata outside a local file is opened with."""

    store: Store
    clock: Clock
    entropy: Entropy
    holder: str
    """The name of this process, for people who look for the holder."""


async def open_metadata(url: str, around: BucketParts | None = None) -> MetadataStore:
    """Open the metadata and bring its schema up to date.

    `sqlite:///path/to/file`, or `sqlite://` (in memory, for tests). `bucket://` keeps it in the store, and
    `bucket:///path/to/image` keeps a local image of it from one start to the next. `postgresql://…` is a database.
    """
    scheme, separator, path = url.partition("://")
    if scheme == "postgresql" and path and around is not None:
        from braidlog.control.metadata.postgres import PostgresMetadata

        return await PostgresMetadata.open(url, around.clock, holder=around.holder)
    if scheme not in ("sqlite", "bucket") or not separator or (path and not path.startswith("/")):
        raise InvalidSetting(
            f"{url!r} is not a metadata store",
            help="Use sqlite:///absolute/path/to/file, bucket:// for the store itself, or postgresql://host/database.",
        )
    if scheme == "sqlite":
        from braidlog.control.metadata.sqlite import SqliteMetadata

        return await SqliteMetadata.open(path)
    from braidlog.control.metadata.bucket import BucketMetadata

    if around is None:
        raise InvalidSetting(f"{url!r} needs a store", help="Use sqlite:///absolute/path/to/file.")
    return await BucketMetadata.open(
        Path(path) if path else None, around.store, around.clock, around.entropy, holder=around.holder
    )
