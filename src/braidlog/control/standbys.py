"""Notices of standbys: control planes that wait to take over tell so in the store.

A standby serves nobody, so nobody could ask it. It costs one PUT for each notice.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec
import structlog

from braidlog.objects.store import NotFound, Store, StoreError
from braidlog.runtime.clock import Clock

_log = structlog.get_logger(__name__)

STANDBY_PREFIX = "standby/"
NOTICE_INTERVAL_S = 30.0
FORGOTTEN_MS = int(4 * NOTICE_INTERVAL_S * 1000)
"""A standby that was silent for so long is not there any more."""
STANDBYS_MAX = 100


class StandbyNotice(msgspec.Struct, frozen=True, array_like=True):
    """What a standby says of itself.

    Persisted as a msgpack array: add new fields at the end, with a default.
    """

    name: str
    position: int
    """The newest delta of the metadata that it has; -1: it copies none."""


def _key(name: str) -> str:
    return STANDBY_PREFIX + hashlib.sha256(name.encode()).hexdigest()[:32]


async def announce_while(
    waiting: Awaitable[None], store: Store, clock: Clock, name: str, position: Callable[[], int]
) -> None:
    """Tell of this standby until `waiting` is over, then take the notice back."""
    announcing = asyncio.create_task(_announce(store, clock, name, position), name="standby notices")
    try:
        await waiting
    finally:
        announcing.cancel()
        await asyncio.wait([announcing])
        with suppress(StoreError):
            await store.delete([_key(name)])


async def _announce(store: Store, clock: Clock, name: str, position: Callable[[], int]) -> None:
    while True:
        notice = msgspec.msgpack.encode(StandbyNotice(name, position()))
        try:
            await store.put(_key(name), notice, overwrite=True)
        except StoreError as error:
            _log.warning("this standby could not be announced", error=str(error), help=error.help)
        await clock.sleep(NOTICE_INTERVAL_S)


async def read_notices(store: Store, now_ms: int) -> list[tuple[StandbyNotice, int]]:
    """Return the notices of living standbys, each with its age in milliseconds."""
    found: list[tuple[StandbyNotice, int]] = []
    page = await store.list(STANDBY_PREFIX, limit=STANDBYS_MAX)
    for meta in page.objects:
        age_ms = max(0, now_ms - meta.modified_ms)
        if age_ms > FORGOTTEN_MS:
            continue
        try:
            data = (await store.get(meta.key)).data
            found.append((msgspec.msgpack.decode(data, type=StandbyNotice), age_ms))
        except (NotFound, msgspec.MsgspecError):
            continue  # it has just taken over, or is not a notice of this release
    return sorted(found, key=lambda each: each[0].name)
