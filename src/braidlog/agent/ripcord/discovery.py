"""Lets agents find each other through the bucket.

Each writes a notice with its address, again and again.

Only the store's clock says who is alive. An agent writes its own notice and lists the others'. It takes those for alive
that were written not much earlier than its own. So agents with different clocks come to the same result.
"""

import asyncio

import msgspec
import structlog

from braidlog.control.interface import AgentInfo
from braidlog.objects.keys import DISCOVERY_PREFIX, discovery_key
from braidlog.objects.store import NotFound, ObjectMeta, Store

log = structlog.get_logger(__name__)

ALIVE_MS = 45_000
"""An agent whose notice is older than this, by the store's clock, is not named to clients. Three intervals."""
PUBLISH_INTERVAL_S = 15.0
"""The interval during an outage. At other times agents publish far less often, because nobody looks."""
FORGOTTEN_MS = 24 * 60 * 60 * 1000
"""An agent that lists notices deletes those older than this."""
AGENTS_MAX = 10_000
DELETES_MAX = 1_000
READS_AT_ONCE = 16
_PAGE = 1_000


class AgentNotice(msgspec.Struct, frozen=True, array_like=True):
    """The content of an agent's object. Persisted: fields are only added at the end."""

    agent: AgentInfo
    written_ms: int
    """The time by the agent's own clock. It is for people; nothing depends on it."""
    mode: str = "off"
    state: str = "present"
    """The state of the control plane for this agent: present, away, or returning while journals are replayed."""
    away_s: float = 0.0


_decoder = msgspec.msgpack.Decoder(AgentNotice)


class Discovery:
    """Publishes this agent's notice and reads those of others."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, tuple[str | None, int, AgentNotice]] = {}
        """Notices by key, with etag and time of writing, so that only changed ones are read again."""

    async def publish(self, notice: AgentNotice) -> None:
        await self._store.put(discovery_key(notice.agent.incarnation), msgspec.msgpack.encode(notice), overwrite=True)

    async def withdraw(self, incarnation: str) -> None:
        await self._store.delete([discovery_key(incarnation)])

    async def read_all(self) -> list[tuple[int, AgentNotice]]:
        """All notices and when they were written, the newest first.

        The notices of dead agents are included.
        """
        listed = await self._list()
        await self._read_changed(listed)
        known = [(written_ms, notice) for key, (_, written_ms, notice) in self._known.items() if key in listed]
        return sorted(known, key=lambda each: (-each[0], each[1].agent.node_id))

    async def find(self, own_incarnation: str) -> list[AgentInfo]:
        """The agents that are alive, ordered by node id. Call `publish` right before."""
        return [notice.agent for notice in await self.notices(own_incarnation)]

    async def notices(self, own_incarnation: str) -> list[AgentNotice]:
        """The newest notices of agents that are alive.

        If two have the same address, the later one has replaced the other. If this agent has no notice of its own, the
        newest notice says what time it is.
        """
        listed = await self._list()
        own = listed.get(discovery_key(own_incarnation))
        now_ms = own.modified_ms if own is not None else max((each.modified_ms for each in listed.values()), default=0)
        alive = {key: meta for key, meta in listed.items() if meta.modified_ms > now_ms - ALIVE_MS}
        await self._read_changed(alive)
        self._known = {key: known for key, known in self._known.items() if key in alive}
        await self._delete_forgotten(listed, now_ms)
        newest: dict[tuple[str, int], tuple[int, AgentNotice]] = {}
        for _, written_ms, notice in self._known.values():
            place = (notice.agent.host, notice.agent.port)
            if place not in newest or written_ms > newest[place][0]:
                newest[place] = (written_ms, notice)
        return sorted((notice for _, notice in newest.values()), key=lambda notice: notice.agent.node_id)

    async def _list(self) -> dict[str, ObjectMeta]:
        listed: dict[str, ObjectMeta] = {}
        after: str | None = None
        while len(listed) < AGENTS_MAX:
            page = await self._store.list(DISCOVERY_PREFIX, after=after, limit=_PAGE)
            listed.update((meta.key, meta) for meta in page.objects)
            after = page.next_after
            if after is None:
                break
        return listed

    async def _read_changed(self, alive: dict[str, ObjectMeta]) -> None:
        changed: list[ObjectMeta] = []
        for key, meta in alive.items():
            known = self._known.get(key)
            if known is not None and known[0] is not None and known[0] == meta.etag:
                self._known[key] = (meta.etag, meta.modified_ms, known[2])
            else:
                changed.append(meta)
        for start in range(0, len(changed), READS_AT_ONCE):
            await asyncio.gather(*map(self._read, changed[start : start + READS_AT_ONCE]))

    async def _read(self, meta: ObjectMeta) -> None:
        try:
            blob = await self._store.get(meta.key)
            self._known[meta.key] = (meta.etag, meta.modified_ms, _decoder.decode(blob.data))
        except NotFound:
            self._known.pop(meta.key, None)
        except msgspec.MsgspecError as error:
            self._known.pop(meta.key, None)
            log.warning("an agent's notice cannot be read", key=meta.key, error=str(error))

    async def _delete_forgotten(self, listed: dict[str, ObjectMeta], now_ms: int) -> None:
        forgotten = [key for key, meta in listed.items() if meta.modified_ms <= now_ms - FORGOTTEN_MS][:DELETES_MAX]
        if forgotten:
            await self._store.delete(forgotten)
