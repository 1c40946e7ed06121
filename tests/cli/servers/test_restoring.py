"""`braid control restore` and its kin, against a store that no process uses any more."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.control.driver import create_topic
from typer.testing import CliRunner

from braidlog.cli.main import app
from braidlog.control.metadata.shipped import with_copy
from braidlog.control.metadata.sqlite import SqliteMetadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy


def braid(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--format", "json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
async def store_url(tmp_path: Path) -> str:
    """A store that holds the copy of a cluster with one topic."""
    clock, entropy = SystemClock(), SystemEntropy()
    url = f"file://{tmp_path}/store"
    store = open_store(url, clock=clock, entropy=entropy)
    metadata = with_copy(await SqliteMetadata.open(str(tmp_path / "lost.db")), store, clock, entropy, interval_s=60.0)
    service = ControlService(metadata, store, clock, entropy, ControlSettings())
    await service.start()
    await create_topic(service, "events")
    await service.close()
    await store.close()
    return url


def test_metadata_is_checked_backed_up_restored_and_moved(store_url: str, tmp_path: Path) -> None:
    checked = braid("control", "verify", "--store", store_url)
    assert (checked["source"], checked["damage"]) == ("copy", "")
    kept = tmp_path / "kept.db"
    assert braid("control", "backup", "--store", store_url, "--out", str(kept))["source"] == "copy"
    assert sqlite3.connect(kept).execute("SELECT name FROM topics").fetchall() == [("events",)]
    new = f"sqlite://{tmp_path}/new.db"
    dry = braid("control", "restore", "--store", store_url, "--metadata", new, "--dry-run")
    assert dry["is_dry_run"]
    assert not (tmp_path / "new.db").exists()
    restored = braid("control", "restore", "--store", store_url, "--metadata", new, "--skip-wait")
    assert restored["restore"] == 1
    assert sqlite3.connect(tmp_path / "new.db").execute("SELECT name FROM topics").fetchall() == [("events",)]
    moved = braid("control", "move", "--from", new, "--metadata", "bucket://", "--store", store_url)
    assert (moved["restore"], moved["is_exact"]) == (2, True)
    text = CliRunner().invoke(app, ["control", "verify", "--store", store_url])
    assert text.exit_code == 0
    assert "deltas" in text.stdout
