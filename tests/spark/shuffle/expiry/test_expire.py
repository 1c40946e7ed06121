"""Batches go by age, and never while an application may read them."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeClock
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.objects.keys import shuffle_heartbeat_key, shuffle_key
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.spark.shuffle.expiry.expire import Heartbeat, expire, is_expired, lifecycle_rules, write_heartbeat

HOUR_S = 3600.0
HOUR_MS = 3_600_000


async def keys_of(store: MemoryStore) -> set[str]:
    return {each.key for each in (await store.list("")).objects}


async def test_batches_of_the_dead_go_and_those_of_the_living_stay() -> None:
    clock = FakeClock()
    store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    start_ms = clock.wall_ms()
    dead, alive, stream, silent = (shuffle_key(job, "inc", 0) for job in ("dead", "alive", "stream", "silent"))
    for key in (dead, alive, stream, silent):
        await store.put(key, b"batch")
    await store.put("data/0/other", b"not ours")
    await store.put("shuffle/alive/strange", b"not ours")
    await write_heartbeat(store, "dead", Heartbeat(start_ms, start_ms))
    clock.advance(2 * HOUR_S)
    late = shuffle_key("stream", "inc", 1)
    await store.put(late, b"batch")
    await write_heartbeat(store, "alive", Heartbeat(clock.wall_ms(), start_ms))
    await write_heartbeat(store, "stream", Heartbeat(clock.wall_ms(), clock.wall_ms() - 1000))
    before = await keys_of(store)
    dry = await expire(store, retention_s=HOUR_S, clock=clock, dry_run=True)
    assert await keys_of(store) == before
    report = await expire(store, retention_s=HOUR_S, clock=clock)
    assert report == dry
    assert before - await keys_of(store) == {dead, shuffle_heartbeat_key("dead"), stream, silent}
    assert (report.jobs, report.expired, report.expired_bytes >= 15) == (4, 4, True)
    # Nothing is left of it that was not in use: the living are gone, too, when they have been silent for long enough.
    clock.advance(2 * HOUR_S)
    await expire(store, retention_s=HOUR_S, clock=clock)
    assert await keys_of(store) == {"data/0/other", "shuffle/alive/strange"}


async def test_many_batches_are_removed_page_by_page() -> None:
    clock = FakeClock()
    store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    for number in range(2300):
        await store.put(shuffle_key(f"job{number % 3}", "inc", number), b"x")
    clock.advance(2 * HOUR_S)
    report = await expire(store, retention_s=HOUR_S, clock=clock)
    assert (report.jobs, report.expired, report.kept) == (3, 2300, 0)
    assert await keys_of(store) == set()


@settings(max_examples=200, deadline=None)
@given(
    written_h=st.floats(-50, 0),
    beat_h=st.floats(-50, 0) | st.none(),
    kept_h=st.floats(-50, 0),
    retention_h=st.floats(0.1, 9),
)
def test_what_may_be_read_never_goes(written_h: float, beat_h: float | None, kept_h: float, retention_h: float) -> None:
    now_ms = 100 * HOUR_MS
    at = [now_ms + int(hours * HOUR_MS) for hours in (written_h, beat_h or 0.0, kept_h)]
    heartbeat = Heartbeat(at[1], at[2]) if beat_h is not None else None
    retention_ms = int(retention_h * HOUR_MS)
    if is_expired(at[0], heartbeat, now_ms=now_ms, retention_ms=retention_ms):
        assert at[0] < now_ms - retention_ms
        if heartbeat is not None and heartbeat.beat_ms >= now_ms - retention_ms:
            assert at[0] < heartbeat.keep_from_ms - retention_ms
    else:
        alive = heartbeat is not None and heartbeat.beat_ms >= now_ms - retention_ms
        assert alive or at[0] >= now_ms - retention_ms


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://bucket/some/where", '"Prefix": "some/where/shuffle/"'),
        ("s3://bucket", '"Prefix": "shuffle/"'),
        ("gs://bucket/x", '"matchesPrefix": ["x/shuffle/"]'),
        ("az://container/x", '"prefixMatch": ["container/x/shuffle/"]'),
    ],
)
def test_rules_for_buckets(url: str, found: str) -> None:
    assert found in json.dumps(lifecycle_rules(url, retention_s=HOUR_S))


def test_a_rule_outlasts_the_retention() -> None:
    for retention_s, days in ((60.0, 2), (86_400.0, 2), (86_401.0, 3)):
        [rule] = lifecycle_rules("s3://b", retention_s=retention_s)["Rules"]  # type: ignore[misc]
        assert rule["Expiration"]["Days"] == days


def test_the_commands(tmp_path) -> None:  # type: ignore[no-untyped-def]
    runner = CliRunner()
    result = runner.invoke(app, ["shuffle", "lifecycle", "--store", "s3://bucket/x"])
    assert json.loads(result.stdout)["Rules"][0]["Status"] == "Enabled"
    result = runner.invoke(app, ["shuffle", "expire", "--store", f"file://{tmp_path}", "--format", "json"])
    assert json.loads(result.stdout)["expired"] == 0
    for wrong in (["expire", "--retention", "long"], ["cache", "--memory", "lots"]):
        assert runner.invoke(app, ["shuffle", *wrong, "--store", f"file://{tmp_path}"]).exception is not None
