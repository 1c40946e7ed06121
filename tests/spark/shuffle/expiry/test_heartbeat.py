"""The driver says that its application is there, and what it may still read."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cluster import wait_until

from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.spark.shuffle.expiry.expire import Heartbeat, read_heartbeat
from braidlog.spark.shuffle.expiry.heartbeat import HeartbeatThread

STARTED = "2033-05-18T03:33:20.000Z"
STARTED_MS = 2_000_000_000_000


def session_of(*timestamps: str | None) -> Any:
    """As much of a Spark session as says how far its streams are."""
    last = [None if each is None else {"timestamp": each} for each in timestamps]
    return SimpleNamespace(streams=SimpleNamespace(active=[SimpleNamespace(lastProgress=each) for each in last]))


def heartbeat(folder: Path) -> Heartbeat | None:
    async def read() -> Heartbeat | None:
        store = open_store(f"file://{folder}", clock=SystemClock(), entropy=SystemEntropy())
        try:
            return await read_heartbeat(store, "job")
        finally:
            await store.close()

    return asyncio.run(read())


def heartbeat_thread(folder: Path) -> HeartbeatThread:
    return HeartbeatThread(f"file://{folder}", "job", retention_s=0.3)


def test_batches_of_a_batch_query_are_kept_from_the_first_shuffle_on(tmp_path: Path) -> None:
    thread = heartbeat_thread(tmp_path)
    thread.use(session_of(STARTED), streaming=False)
    first = heartbeat(tmp_path)
    assert first is not None
    try:
        later = wait_until(lambda: (found := heartbeat(tmp_path)) != first and found, what="another heartbeat")
        assert later.beat_ms > first.beat_ms
        assert later.keep_from_ms == first.keep_from_ms <= first.beat_ms
    finally:
        thread.stop()


def test_a_stream_needs_nothing_from_before_its_last_micro_batch(tmp_path: Path) -> None:
    thread = heartbeat_thread(tmp_path)
    try:
        thread.use(session_of(STARTED, "2033-05-18T03:33:21.500Z"), streaming=True)
        found = heartbeat(tmp_path)
        assert found is not None
        assert found.keep_from_ms == STARTED_MS
        # One batch query, and everything stays.
        thread.use(session_of("2033-05-18T03:34:00.000Z"), streaming=False)
        wait_until(lambda: heartbeat(tmp_path) != found, what="another heartbeat")
        kept = heartbeat(tmp_path)
        assert kept is not None
        assert kept.keep_from_ms == STARTED_MS
    finally:
        thread.stop()


def test_a_stream_that_has_finished_nothing_keeps_all(tmp_path: Path) -> None:
    for session in (session_of(STARTED, None), session_of(), SimpleNamespace()):
        thread = heartbeat_thread(tmp_path)
        thread.use(session, streaming=True)
        thread.stop()
        found = heartbeat(tmp_path)
        assert found is not None
        assert found.keep_from_ms <= found.beat_ms < STARTED_MS
