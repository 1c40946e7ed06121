"""Lets the agents of a zone read for each other.

So the zone reads each object from the store once.
"""

from collections.abc import Iterator

from braidlog.agent.cluster.session import AgentSession
from braidlog.agent.cluster.view import ClusterView
from braidlog.cache.blocks import BlockCache
from braidlog.cache.neighbours import Neighbour, Neighbours, NeighbourStatistics
from braidlog.control.interface import AgentInfo
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.quantities import Address
from braidlog.runtime.settings import AgentSettings


class ZoneCache:
    """Follows the view to find its neighbours.

    Every agent that has a cache and is in the same zone is a neighbour.

    Agents that do not name a zone may be in different ones, where traffic between them costs more than the store. Such
    an agent shares only with agents on its own host, which are the other shards of the same agent.
    """

    def __init__(
        self,
        neighbours: Neighbours,
        cache: BlockCache,
        view: ClusterView,
        session: AgentSession,
        settings: AgentSettings,
    ) -> None:
        self._view = view
        self._session = session
        self._settings = settings
        self._neighbours = neighbours
        self._cache = cache

    async def start(self) -> str:
        """Serve this agent's cache to its neighbours.

        Returns the address by which they reach it.
        """
        settings = self._settings
        listen = settings.cache_listen
        where = listen if isinstance(listen, Address) else Address(settings.listen.host, 0)
        try:
            bound = await self._neighbours.serve(self._cache, str(where))
        except OSError as error:
            raise InvalidSetting(
                f"cannot listen on {where}: {error.strerror or error}",
                help="Stop what uses the port, or set cache_listen=HOST:PORT, or off.",
            ) from error
        return str(Address(settings.advertised_host, Address.parse(bound).port))

    async def follow(self) -> None:
        """Keep the neighbours up to date for ever."""
        view, session = self._view, self._session
        while True:
            own = view.agents.get(session.node_id)
            self._neighbours.set(str(session.node_id), self._around(own) if own is not None else ())
            await view.wait_catalog_change()

    def _around(self, own: AgentInfo) -> Iterator[Neighbour]:
        for info in self._view.agents.values():
            if info.cache_address and info.zone == own.zone and (own.zone or info.host == own.host):
                yield Neighbour(str(info.node_id), info.cache_address, info.incarnation)

    def statistics(self) -> NeighbourStatistics:
        return self._neighbours.statistics()

    async def close(self) -> None:
        await self._neighbours.close()
