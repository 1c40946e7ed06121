"""Metadata in PostgreSQL: fencing, lost connections, and a control plane on it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.control.driver import batch, commit, create_topic, start_plane
from tests.fakes import FakeClock
from tests.postgres import Postgres, running_postgres

from braidlog.control.interface import BoundsRequest
from braidlog.control.metadata import postgres as postgres_module
from braidlog.control.metadata.copies import CopyLog
from braidlog.control.metadata.copy_reader import load_copy
from braidlog.control.metadata.postgres import PostgresMetadata
from braidlog.control.metadata.shipped import with_copy
from braidlog.control.metadata.store import (
    MetadataBusy,
    MetadataConflict,
    MetadataError,
    MetadataUnavailable,
    SchemaTooNew,
    SharedMetadata,
    Transaction,
    load_migrations,
)
from braidlog.control.metadata.tables import tables_of
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import Fenced


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


async def opened(url: str) -> PostgresMetadata:
    return await PostgresMetadata.open(url, SystemClock(), holder="a test")


async def holding(url: str) -> PostgresMetadata:
    metadata = await opened(url)
    await metadata.acquire_fencing_epoch()
    return metadata


async def once_it_answers(call: Callable[[Any], Awaitable[Any]], work: object) -> Any:
    """Try again while the server is not found again: whoever calls does so, too."""
    async with asyncio.timeout(120):
        while True:
            try:
                return await call(work)
            except MetadataUnavailable:
                await asyncio.sleep(0.05)


def add_fact(name: str, value: str) -> "object":
    return lambda tx: tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", (name, value))


def facts(tx: Transaction) -> dict[str, str]:
    return dict(tx.query("SELECT name, value FROM facts"))  # type: ignore[arg-type]


async def test_a_failed_transaction_leaves_nothing(server: Postgres) -> None:
    metadata = await holding(server.new_database())

    def write(tx: Transaction) -> None:
        tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", ("a", "1"))
        tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", ("a", "2"))

    with pytest.raises(MetadataConflict):
        await metadata.transact(write)
    assert await metadata.read(facts) == {}
    await metadata.close()


async def test_nobody_writes_or_reads_without_the_newest_epoch(server: Postgres) -> None:
    url = server.new_database()
    first, second = await opened(url), await opened(url)
    with pytest.raises(Fenced):
        await first.transact(facts)
    assert await first.acquire_fencing_epoch() == 1
    assert await second.acquire_fencing_epoch() == 2
    for call in (first.transact, first.read):
        with pytest.raises(Fenced):
            await call(facts)
    assert await second.transact(facts) == {}
    assert await first.peek(facts) == {}
    await first.close()
    await second.close()


async def test_a_newer_schema_is_refused(server: Postgres) -> None:
    url = server.new_database()
    await (await opened(url)).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO schema_version VALUES (99999)")
    with pytest.raises(SchemaTooNew):
        await opened(url)


async def test_the_schema_changes_only_when_the_older_holder_is_fenced(
    server: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = server.new_database()
    migrations = load_migrations()
    monkeypatch.setattr(postgres_module, "load_migrations", lambda: migrations[:-1])
    old = await holding(url)
    monkeypatch.undo()
    new = await opened(url)
    await old.transact(add_fact("a", "1"))  # type: ignore[arg-type]
    versions = "SELECT MAX(version) FROM schema_version"
    assert await new.peek(lambda tx: tx.query(versions)) == [(migrations[-2][0],)]
    await new.acquire_fencing_epoch()
    assert await new.read(lambda tx: tx.query(versions)) == [(migrations[-1][0],)]
    await old.close()
    await new.close()


async def test_a_second_process_is_refused_until_the_connection_of_the_first_one_ends(server: Postgres) -> None:
    url = server.new_database()
    first, second = await opened(url), await opened(url)
    await first.wait_vacant(patient=False, silent_s=600.0)
    await first.acquire_fencing_epoch()
    with pytest.raises(MetadataBusy, match="a test"):
        await second.wait_vacant(patient=False, silent_s=600.0)
    await first.close()
    await second.wait_vacant(patient=True, silent_s=600.0)
    assert await second.acquire_fencing_epoch() == 2
    await second.close()


async def test_one_that_is_silent_is_taken_over_from_though_its_connection_lasts(server: Postgres) -> None:
    url = server.new_database()
    first, second = await opened(url), await opened(url)
    await first.wait_vacant(patient=False, silent_s=600.0)
    await first.acquire_fencing_epoch()
    await first._tasks.cancel_all()  # it hangs
    await second.wait_vacant(patient=True, silent_s=0.5)
    assert await second.acquire_fencing_epoch() == 2
    with pytest.raises(Fenced):
        await first.read(facts)
    await first.close()
    await second.close()


async def test_a_connection_lost_in_a_commit_is_settled_by_asking(server: Postgres) -> None:
    """The server ends the connection after it has committed, and before it says so; and once before."""
    metadata = await holding(server.new_database())
    for is_committed in (True, False):

        class Losing:
            """The writer's connection, which is lost at the commit."""

            def __init__(self, inner: psycopg.Cursor[tuple[object, ...]]) -> None:
                self._inner = inner

            def execute(self, sql: str, *arguments: object) -> object:
                if sql != "COMMIT":
                    return self._inner.execute(sql, *arguments)  # type: ignore[arg-type]
                if is_committed:  # noqa: B023 - used at once
                    self._inner.execute("COMMIT")
                self._inner.connection.pgconn.finish()
                raise psycopg.OperationalError("the connection is lost")

            def __getattr__(self, name: str) -> object:
                return getattr(self._inner, name)

        link = metadata._writer
        original = link.cursor
        lost = []

        def cursor() -> object:
            found = original()  # noqa: B023 - used at once
            if not lost:  # noqa: B023
                lost.append(found)  # noqa: B023
                return Losing(found)
            return found

        link.cursor = cursor  # type: ignore[assignment]
        name = str(is_committed)
        if is_committed:
            assert await metadata.transact(add_fact(name, "1")) == 1  # type: ignore[arg-type]
        else:
            with pytest.raises(MetadataError):
                await metadata.transact(add_fact(name, "1"))  # type: ignore[arg-type]
        assert lost
        link.cursor = original  # type: ignore[method-assign]
    assert await metadata.read(facts) == {"True": "1"}
    await metadata.close()


async def test_a_restarted_server_is_found_again(server: Postgres) -> None:
    metadata = await holding(server.new_database())
    await metadata.transact(add_fact("a", "1"))  # type: ignore[arg-type]
    server.kill()
    for call in (metadata.transact, metadata.read):
        with pytest.raises(MetadataError):
            await call(facts)
    server.start()
    assert await once_it_answers(metadata.read, facts) == {"a": "1"}
    await once_it_answers(metadata.plan, add_fact("b", "2"))
    await metadata.progress.wait_for(metadata.progress.planned)
    assert await once_it_answers(metadata.read, facts) == {"a": "1", "b": "2"}
    await metadata.close()


async def test_what_the_server_lost_of_the_planned_is_run_again(server: Postgres) -> None:
    """Transactions are committed before they are synced, so a crash may lose the newest ones."""
    url = server.new_database()
    metadata = await holding(url)
    await metadata.transact(add_fact("0", "told"))  # type: ignore[arg-type]
    await metadata._tasks.cancel_all()  # nothing more becomes durable
    for number in range(1, 6):
        await metadata.plan(add_fact(str(number), "planned"))  # type: ignore[arg-type]
    with psycopg.connect(url, autocommit=True) as connection:  # as if a crash had lost the last three
        connection.execute("UPDATE fencing SET committed = 3")
        connection.execute("DELETE FROM facts WHERE name IN ('3', '4', '5')")
    with pytest.raises(MetadataError, match="has lost"):
        await metadata.read(facts)  # memory knows more than the server: nothing may be read from it
    await metadata.plan(add_fact("6", "planned on top"))  # type: ignore[arg-type]
    found = await metadata.read(facts)
    assert sorted(found) == ["0", "1", "2", "3", "4", "5", "6"]
    await metadata.close()


async def test_nothing_is_planned_over_what_the_server_has_lost_unnoticed(server: Postgres) -> None:
    """The writer may have a new connection before anybody has noticed that the old one broke."""
    url = server.new_database()
    metadata = await holding(url)
    await metadata._tasks.cancel_all()  # nothing becomes durable
    for number in range(1, 4):
        await metadata.plan(add_fact(str(number), "planned"))  # type: ignore[arg-type]
    with psycopg.connect(url, autocommit=True) as connection:  # as if a crash had lost the last two
        connection.execute("UPDATE fencing SET committed = 1")
        connection.execute("DELETE FROM facts WHERE name IN ('2', '3')")
    with pytest.raises(MetadataError, match="has lost"):
        await metadata.plan(add_fact("4", "refused"))  # type: ignore[arg-type]
    await metadata.plan(add_fact("5", "planned on top"))  # type: ignore[arg-type]
    assert sorted(await metadata.read(facts)) == ["1", "2", "3", "5"]
    await metadata.close()


async def test_a_server_that_has_lost_what_was_durable_is_not_trusted(server: Postgres) -> None:
    """Such as a standby that was promoted, and was not synchronous."""
    url = server.new_database()
    metadata = await holding(url)
    for number in range(1, 4):
        await metadata.transact(add_fact(str(number), "told"))  # type: ignore[arg-type]
    await metadata._tasks.cancel_all()
    await metadata.plan(add_fact("4", "planned"))  # type: ignore[arg-type]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE fencing SET committed = 2")
        connection.execute("DELETE FROM facts WHERE name IN ('3', '4')")
    with pytest.raises(MetadataError, match="has lost"):
        await metadata.plan(add_fact("5", "refused"))  # type: ignore[arg-type]
    with pytest.raises(Fenced, match="durable"):
        await metadata.plan(add_fact("6", "refused"))  # type: ignore[arg-type]
    assert metadata.lost.is_set()
    await metadata.close()


async def test_nothing_planned_is_lost_when_the_server_is_killed(server: Postgres) -> None:
    metadata = await holding(server.new_database())
    expected: dict[str, str] = {}
    for round_number in range(3):
        for number in range(20):
            name = f"{round_number}-{number}"
            await metadata.plan(add_fact(name, "x"))  # type: ignore[arg-type]
            expected[name] = "x"
        server.kill()
        server.start()
        await metadata.progress.wait_for(len(expected))
    assert await metadata.read(facts) == expected
    await metadata.close()


async def test_taking_over_waits_for_a_transaction_that_is_under_way(server: Postgres) -> None:
    url = server.new_database()
    old, new = await holding(url), await opened(url)
    entered, may_go_on = threading.Event(), threading.Event()

    def slow(tx: Transaction) -> None:
        tx.execute("INSERT INTO facts (name, value) VALUES ('a', '1')")
        entered.set()
        assert may_go_on.wait(60)

    under_way = asyncio.create_task(old.transact(slow))
    await asyncio.to_thread(entered.wait, 60)
    taking_over = asyncio.create_task(new.acquire_fencing_epoch())
    may_go_on.set()
    with suppress(Fenced):  # it was kept, but may have been too late to be told so
        await under_way
    assert await taking_over == 2
    assert await new.read(facts) == {"a": "1"}
    await old.close()
    await new.close()


async def test_a_control_plane_runs_on_it(server: Postgres, tmp_path: Path) -> None:
    url = server.new_database()
    first = await start_plane(url)
    topic = await create_topic(first.service)
    assert await commit(first.service, topic, [batch(3)]) == [(0, 0, False)]
    second = await start_plane(url, clock=first.clock, bucket=first.bucket)
    with pytest.raises(Fenced):
        await commit(first.service, topic, [batch()])
    assert await commit(second.service, topic, [batch(2)]) == [(0, 3, False)]
    bounds = await second.service.current_bounds(BoundsRequest(topic.partition_ids))
    assert [bound.high_watermark for bound in bounds.bounds] == [5]
    await first.service.close()
    await second.service.close()


async def test_a_dump_has_every_row_and_so_does_the_copy_in_the_bucket(server: Postgres, tmp_path: Path) -> None:
    clock = FakeClock(sleepers_wait=True)
    store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    inner = await PostgresMetadata.open(server.new_database(), clock, holder="one")
    metadata = with_copy(inner, store, clock, SeededEntropy("copy"), interval_s=10.0)
    assert isinstance(metadata, SharedMetadata)
    await metadata.acquire_fencing_epoch()
    for number in range(3):  # the first ones are in a snapshot, the last one in an increment

        def write(tx: Transaction, number: int = number) -> None:
            tx.execute("INSERT INTO facts (name, value) VALUES (?, ?)", (f"n{number}", "%'?"))
            tx.executemany("INSERT INTO counters (name, value) VALUES (?, ?)", [(f"c{number}", 1 << 60)])
            tx.execute(
                "INSERT INTO topics (topic_id, name, configs, replication_factor, created_ms) VALUES (?, ?, ?, ?, ?)",
                (bytes([number]) * 16, f"t{number}", "{}", True, 1),
            )

        await metadata.transact(write)
    loaded = await load_copy(CopyLog(store, clock, SeededEntropy("read")), tmp_path / "loaded.db")
    assert loaded is not None
    assert loaded.position == metadata.copy_position == 3
    assert loaded.increment_count > 0
    copy = apsw.Connection(str(tmp_path / "loaded.db"))
    whole = apsw.Connection(":memory:")
    whole.deserialize("main", await inner.dump())
    for table in tables_of(whole):
        assert copy.execute(table.select).fetchall() == whole.execute(table.select).fetchall(), table.name
    assert whole.execute("SELECT name FROM facts ORDER BY name").fetchall() == [("n0",), ("n1",), ("n2",)]
    await metadata.close()
