"""`braid doctor`: check what Braidlog relies on, and say how to fix it."""

import asyncio
import os
import socket
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from braidlog.cli.errors import explain
from braidlog.cli.output import OutputFormat, emit, emit_json
from braidlog.cli.settings import read_settings
from braidlog.objects.open import open_store
from braidlog.objects.store import AlreadyExists, Conflict, NotFound, Store
from braidlog.runtime.clock import Clock, SystemClock
from braidlog.runtime.entropy import Entropy, SystemEntropy
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import Settings

CLOCK_SKEW_MS_MAX = 5_000
"""Retention and timestamps tolerate this much; request signatures fail at minutes."""
CHECK_TIMEOUT_S = 20.0
VOLATILE_FILE_SYSTEMS = {"tmpfs", "ramfs", "devtmpfs", "proc", "sysfs"}


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    ok: bool
    detail: str
    advice: str = ""
    took_ms: int = 0


class Trouble(Exception):
    """A failed check: what is wrong, and what to do."""

    def __init__(self, detail: str, advice: str) -> None:
        super().__init__(detail)
        self.advice = advice


class StoreChecks:
    """Checks a store with one object: create, race, replace, date and remove it."""

    def __init__(self, store: Store, clock: Clock, entropy: Entropy) -> None:
        self._store = store
        self._clock = clock
        self._key = f"doctor/{entropy.token(8).hex()}"
        self._etag: str | None = None

    async def writable(self) -> str:
        self._etag = await self._store.put(self._key, b"first")
        return f"{self._store.url} takes objects"

    async def readable(self) -> str:
        if bytes((await self._store.get(self._key)).data) != b"first":
            raise Trouble("an object came back with other bytes", "Do not use this store.")
        page = await self._store.list("doctor/")
        if self._key not in [found.key for found in page.objects]:
            raise Trouble("a fresh object is missing in the listing", "Use a store whose listings are consistent.")
        return "a fresh object is read back and listed"

    async def creates_once(self) -> str:
        try:
            self._etag = await self._store.put(self._key, b"second")
        except AlreadyExists:
            return "a second create of the same key is refused"
        raise Trouble(
            "a create-only put replaced an object",
            "Use a store that honours If-None-Match; without it data can be lost.",
        )

    async def updates_conditionally(self) -> str:
        if self._etag is None:
            raise Trouble("puts return no ETag", "Use a store that returns ETags and honours If-Match.")
        await self._store.update(self._key, b"third", etag=self._etag)
        try:
            await self._store.update(self._key, b"fourth", etag=self._etag)
        except Conflict:
            return "an update with an old ETag is refused"
        raise Trouble("an update with an old ETag went through", "Use a store that honours If-Match.")

    async def clock(self) -> str:
        key = f"{self._key}-clock"
        before_ms = self._clock.wall_ms()
        await self._store.put(key, b"now")
        after_ms = self._clock.wall_ms()
        modified_ms = (await self._store.head(key)).modified_ms
        # Stores date objects in whole seconds, so a second of difference is no skew.
        skew_ms = max(before_ms - 1_000 - modified_ms, modified_ms - after_ms - 1_000, 0)
        if skew_ms > CLOCK_SKEW_MS_MAX:
            raise Trouble(
                f"this machine's clock and the store's differ by {skew_ms / 1000:.1f} s", "Synchronise the clock (NTP)."
            )
        return "this machine's clock agrees with the store's"

    async def deletes(self) -> str:
        await self._store.delete([self._key, f"{self._key}-clock"])
        try:
            await self._store.head(self._key)
        except NotFound:
            return "a deleted object is gone"
        raise Trouble("a deleted object is still there", "Allow deletes; otherwise expired data is never removed.")


def absent_folder(store_url: str) -> Path | None:
    """Give the folder of a local store that does not exist yet.

    Gives None if there is a store to try.
    """
    parts = urlsplit(store_url)
    folder = Path(unquote(parts.path))
    return folder if parts.scheme == "file" and not folder.exists() else None


def check_absent_folder(folder: Path) -> str:
    """Check whether a store could be created in `folder`, without creating it."""
    parent = next(parent for parent in folder.parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise Trouble(
            f"{folder} is not there, and cannot be made in {parent}", "Change its permissions, or set store_url."
        )
    kind = file_system(parent)
    if kind in VOLATILE_FILE_SYSTEMS:
        raise Trouble(f"{parent} is on {kind}, which a reboot empties", "Set store_url to a folder on a disk.")
    return f"{folder} is not there yet; `braid up` will make it, on {kind}"


def check_metadata(url: str) -> str:
    """Check whether the metadata survives a restart, without writing.

    A control plane may be using it now.
    """
    if url.startswith("postgresql://"):
        return "in PostgreSQL, which is not looked at here"
    if url.startswith("bucket://"):
        return "in the store, as safe as the records"
    path = Path(url.removeprefix("sqlite://"))
    if url == "sqlite://":
        raise Trouble("the metadata is in memory, and lost at exit", "Set metadata_url=sqlite:///path/to/metadata.db")
    folder = next(parent for parent in path.parents if parent.exists())
    if not os.access(folder, os.W_OK):
        raise Trouble(f"{folder} cannot be written to", "Change its permissions, or set metadata_url to another place.")
    kind = file_system(folder)
    if kind in VOLATILE_FILE_SYSTEMS:
        raise Trouble(f"{folder} is on {kind}, which a reboot empties", "Set metadata_url to a path on a disk.")
    if path.exists():
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise Trouble(f"{path} is not a healthy database: {error}", "Restore it from a copy.") from error
        finally:
            connection.close()
        if mode != "wal":
            raise Trouble(f"{path} has the journal mode {mode}", "Has another program changed it? Restore it.")
        return f"{path} is readable, on {kind}"
    return f"{path} will be created, on {kind}"


def file_system(folder: Path) -> str:
    """Give the type of a folder's file system on Linux; `disk` on other systems."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return "disk"
    resolved = str(folder.resolve())
    best = ("", "disk")
    for line in mounts.read_text().splitlines():
        _, point, kind, *_ = line.split(" ")
        inside = resolved == point or resolved.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


async def check_address(address: Address) -> str:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: the host name cannot be encoded
        reason = getattr(error, "strerror", None) or error
        raise Trouble(
            f"{address.host} has no address: {reason}", "Fix the name, or set advertised=HOST:PORT."
        ) from error
    where = f"{address} is {found[0][4][0]}"
    if address.port == 0:
        return f"{where}, on any free port"
    try:
        async with asyncio.timeout(3.0):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except ConnectionRefusedError:
        return f"{where}; nothing listens there now"
    except (OSError, TimeoutError) as error:
        raise Trouble(
            f"{where}, but cannot be reached: {error or 'no answer'}",
            "Check routes and firewalls, or set advertised=HOST:PORT.",
        ) from error
    writer.close()
    return f"{where}, and an agent answers there"


async def examine(
    settings: Settings, clock: Clock, entropy: Entropy, wrap: Sequence[Callable[[Store], Store]] = ()
) -> list[Finding]:
    """Run all checks in order.

    Skips the other checks of a store that cannot be written to.
    """
    findings: list[Finding] = []

    async def check(name: str, run: Callable[[], Awaitable[str]]) -> bool:
        start_s = clock.monotonic_s()
        try:
            async with asyncio.timeout(CHECK_TIMEOUT_S):
                verdict = Finding(name, True, await run())
        except Trouble as trouble:
            verdict = Finding(name, False, str(trouble), trouble.advice)
        except TimeoutError:
            verdict = Finding(name, False, f"no answer within {CHECK_TIMEOUT_S:.0f} s", "Check network and endpoint.")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's finding
            detail, advice = explain(error)
            verdict = Finding(name, False, detail, advice)
        took_ms = round((clock.monotonic_s() - start_s) * 1000)
        findings.append(Finding(verdict.check, verdict.ok, verdict.detail, verdict.advice, took_ms))
        return verdict.ok

    async def metadata() -> str:
        return await asyncio.get_running_loop().run_in_executor(None, check_metadata, settings.control.metadata_url)

    async def durable() -> str:
        if settings.agent.store_url.startswith("memory:"):
            raise Trouble(
                "the store is in memory, and lost at exit", "Set store_url=file:///path or s3://bucket/prefix"
            )
        return "the store outlives this process"

    async def absent(folder: Path) -> str:
        return check_absent_folder(folder)

    async def examine_store() -> None:
        store = open_store(settings.agent.store_url, clock=clock, entropy=entropy, wrap=wrap)
        try:
            checks = StoreChecks(store, clock, entropy)
            await check("store durable", durable)
            if await check("store writable", checks.writable):
                await check("store readable", checks.readable)
                await check("conditional create", checks.creates_once)
                await check("conditional update", checks.updates_conditionally)
                await check("clock", checks.clock)
                await check("store deletable", checks.deletes)
        finally:
            await store.close()

    folder = absent_folder(settings.agent.store_url)
    if folder is not None:
        await check("store not there yet", lambda: absent(folder))
    else:
        await examine_store()
    await check("metadata durable", metadata)
    await check("advertised address", lambda: check_address(settings.agent.advertised or settings.agent.listen))
    return findings


def run_doctor(
    config: Path | None,
    set: list[str] | None,
    output: OutputFormat,
    *,
    clock: Clock | None = None,
    wrap: Sequence[Callable[[Store], Store]] = (),
) -> int:
    """Print the findings, and give the exit code.

    `wrap` is put around the store, as in `open_store`.
    """
    settings = read_settings(config, set, {})
    findings = asyncio.run(examine(settings, clock or SystemClock(), SystemEntropy(), wrap))
    failed = [finding for finding in findings if not finding.ok]
    if output is OutputFormat.JSON:
        emit_json({"ok": not failed, "checks": [asdict(finding) for finding in findings]})
        return 1 if failed else 0
    for number, finding in enumerate(findings, 1):
        verdict = "OK  " if finding.ok else "FAIL"
        emit(f"{number} of {len(findings)}  {verdict}  {finding.check:<20} {finding.detail} [{finding.took_ms} ms]")
        if not finding.ok:
            emit(f"              help: {finding.advice}")
    emit(f"{len(findings) - len(failed)} checks passed, {len(failed)} failed")
    return 1 if failed else 0
