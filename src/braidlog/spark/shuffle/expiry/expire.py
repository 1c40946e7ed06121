"""Expires batches by age.

Reading a batch never removes it, because a task may run again.

Every few minutes an application writes a heartbeat, with the time from which on it may still read its batches. A batch
expires when it is older than that time by the retention. All batches of an application expire when its last heartbeat
is that old.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from braidlog.objects.keys import SHUFFLE_PREFIX, InvalidKey, parse_shuffle_key, shuffle_heartbeat_key
from braidlog.objects.store import NotFound, ObjectMeta, Store
from braidlog.runtime.clock import Clock
from braidlog.spark.shuffle.aggregate.state_store import STATE_PREFIX

RETENTION_S_DEFAULT = 3600.0
BEATS_PER_RETENTION = 6
_PAGE = 1000


class Heartbeat(msgspec.Struct, array_like=True, frozen=True):
    """The content of `shuffle/<job>/heartbeat`, as JSON.

    Persisted: add fields only at the end.
    """

    beat_ms: int
    """When the application wrote it."""
    keep_from_ms: int
    """Batches written before this time will not be read any more."""


@dataclass(frozen=True, slots=True)
class ExpiryReport:
    jobs: int
    kept: int
    kept_bytes: int
    expired: int
    expired_bytes: int


def is_expired(modified_ms: int, heartbeat: Heartbeat | None, *, now_ms: int, retention_ms: int) -> bool:
    if heartbeat is not None and now_ms - heartbeat.beat_ms <= retention_ms:
        return modified_ms < min(heartbeat.keep_from_ms, now_ms) - retention_ms
    # The application is gone: nobody can read the batch, or write more.
    return modified_ms < now_ms - retention_ms


async def write_heartbeat(store: Store, job: str, heartbeat: Heartbeat) -> None:
    await store.put(shuffle_heartbeat_key(job), msgspec.json.encode(heartbeat), overwrite=True)


async def read_heartbeat(store: Store, job: str) -> Heartbeat | None:
    try:
        return msgspec.json.decode((await store.get(shuffle_heartbeat_key(job))).data, type=Heartbeat)
    except NotFound:
        return None


async def expire(store: Store, *, retention_s: float, clock: Clock, dry_run: bool = False) -> ExpiryReport:
    """Delete batches that no application needs.

    May run beside applications, and beside itself.
    """
    retention_ms = int(retention_s * 1000)
    now_ms = clock.wall_ms()
    job = ""
    jobs = 0
    heartbeat: Heartbeat | None = None
    kept: list[int] = [0, 0]
    expired: list[int] = [0, 0]
    after: str | None = None
    while True:
        page = await store.list(SHUFFLE_PREFIX, after=after, limit=_PAGE)
        gone: list[str] = []
        for found in page.objects:
            name = found.key.removeprefix(SHUFFLE_PREFIX).partition("/")[0]
            if name != job:
                job, heartbeat = name, await _heartbeat_of(store, found)
                jobs += 1
            if not _is_ours(found.key, job):
                continue
            past = is_expired(found.modified_ms, heartbeat, now_ms=now_ms, retention_ms=retention_ms)
            counts = expired if past else kept
            counts[0] += 1
            counts[1] += found.size
            if past:
                gone.append(found.key)
        if gone and not dry_run:
            await store.delete(gone)
        if page.next_after is None:
            return ExpiryReport(jobs, kept[0], kept[1], expired[0], expired[1])
        after = page.next_after


async def _heartbeat_of(store: Store, found: ObjectMeta) -> Heartbeat | None:
    try:
        return await read_heartbeat(store, found.key.removeprefix(SHUFFLE_PREFIX).partition("/")[0])
    except InvalidKey:
        return None


def _is_ours(key: str, job: str) -> bool:
    """Return whether a key is a batch, a heartbeat or a node of the job.

    Nothing else is ever deleted.

    A heartbeat expires as batches do. While its application runs, it is always young.
    """
    try:
        parse_shuffle_key(key)
    except InvalidKey:
        others = (f"{SHUFFLE_PREFIX}{job}/{name}" for name in ("heartbeat", "nodes/", "usage/"))
        return key == next(others) or key.startswith(tuple(others))
    return True


@dataclass(frozen=True, slots=True)
class StatesReport:
    queries: int
    states_expired: int
    states_expired_bytes: int


async def expire_states(store: Store, *, retention_s: float, clock: Clock, dry_run: bool = False) -> StatesReport:
    """Delete the states of queries that ran no micro-batch within the retention.

    A query that is only idle loses its state too, and then fails. So the retention must be longer than any idle time.
    """
    before_ms = clock.wall_ms() - int(retention_s * 1000)
    after: str | None = None
    queries = expired_count = expired_bytes = 0
    query = ""
    gathered: list[ObjectMeta] = []

    async def finish() -> None:
        nonlocal expired_count, expired_bytes
        if gathered and max(each.modified_ms for each in gathered) < before_ms:
            expired_count += len(gathered)
            expired_bytes += sum(each.size for each in gathered)
            if not dry_run:
                await store.delete([each.key for each in gathered])
        gathered.clear()

    while True:
        page = await store.list(STATE_PREFIX, after=after, limit=_PAGE)
        for found in page.objects:
            name = found.key.removeprefix(STATE_PREFIX).partition("/")[0]
            if name != query:
                await finish()
                query = name
                queries += 1
            gathered.append(found)
        if page.next_after is None:
            await finish()
            return StatesReport(queries, expired_count, expired_bytes)
        after = page.next_after


def lifecycle_rules(url: str, *, retention_s: float) -> dict[str, object]:
    """Make the rule by which the store itself deletes old batches.

    It is in the format of the store's own tools.

    Such a rule knows only whole days and the age of objects. So it is a safety net below `expire`, and no shuffle may
    take longer.
    """
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    days = max(1, -(-int(retention_s) // 86_400) + 1)
    folder = unquote(parts.path).strip("/")
    prefix = f"{folder}/{SHUFFLE_PREFIX}" if folder else SHUFFLE_PREFIX
    name = "braidlog-shuffle"
    if parts.scheme == "gs":
        condition = {"age": days, "matchesPrefix": [prefix]}
        return {"lifecycle": {"rule": [{"action": {"type": "Delete"}, "condition": condition}]}}
    if parts.scheme == "az":
        deletion = {"baseBlob": {"delete": {"daysAfterModificationGreaterThan": days}}}
        filters = {"blobTypes": ["blockBlob"], "prefixMatch": [f"{parts.netloc}/{prefix}"]}
        definition = {"actions": deletion, "filters": filters}
        return {"rules": [{"enabled": True, "name": name, "type": "Lifecycle", "definition": definition}]}
    rule = {"ID": name, "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": days}}
    return {"Rules": [rule]}


def lifecycle_command(url: str) -> Sequence[str]:
    """Return the command that applies the rule in `lifecycle.json`."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme == "gs":
        return ("gcloud", "storage", "buckets", "update", f"gs://{parts.netloc}", "--lifecycle-file=lifecycle.json")
    if parts.scheme == "az":
        return ("az", "storage", "account", "management-policy", "create", "--policy", "@lifecycle.json")
    where = ("--bucket", parts.netloc, "--lifecycle-configuration", "file://lifecycle.json")
    return ("aws", "s3api", "put-bucket-lifecycle-configuration", *where)
