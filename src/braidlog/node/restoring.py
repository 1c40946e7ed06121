"""Restores, moves, backups and checks of the metadata, from settings."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from braidlog.control.metadata.store import BucketParts
from braidlog.control.restoring.restore import RestoreOrder, back_up, restore, verify
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy
from braidlog.runtime.settings import ControlPlaneSettings

T = TypeVar("T")


def run_restore(
    settings: ControlPlaneSettings, *, backup: Path | None, is_dry_run: bool, waits: bool
) -> dict[str, Any]:
    """Make the metadata at `metadata_url` again, and return the report."""
    order = RestoreOrder(settings.metadata_url, backup=backup, is_dry_run=is_dry_run, waits=waits)
    return _report(_with_store(settings, lambda parts: restore(parts, order)))


def run_move(settings: ControlPlaneSettings, moved_from: str) -> dict[str, Any]:
    """Move metadata to `metadata_url`, and return the report."""
    order = RestoreOrder(settings.metadata_url, moved_from=moved_from)
    return _report(_with_store(settings, lambda parts: restore(parts, order)))


def run_verify(settings: ControlPlaneSettings) -> dict[str, Any]:
    """Check the store, and return the report of a restore that changes nothing."""
    return _report(_with_store(settings, verify))


def run_backup(settings: ControlPlaneSettings, file: Path) -> dict[str, Any]:
    """Write a backup, and return what it was made from."""
    source = _with_store(settings, lambda parts: back_up(parts, file))
    fields = {"file": str(file), "source": source.kind, "position": source.position, "restore": source.restore}
    return {**fields, "damage": source.damage or None}


def _report(report: object) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(report)
    return found


def _with_store(settings: ControlPlaneSettings, work: Callable[[BucketParts], Awaitable[T]]) -> T:
    return asyncio.run(_work(settings, work))


async def _work(settings: ControlPlaneSettings, work: Callable[[BucketParts], Awaitable[T]]) -> T:
    clock, entropy = SystemClock(), SystemEntropy()
    store = open_store(settings.store_url, clock=clock, entropy=entropy)
    try:
        return await work(BucketParts(store, clock, entropy, "braid control restore"))
    finally:
        await store.close()
