"""The agent among those of its zone: they read for each other, so that the zone asks the store once for an object."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from braidlog.cache.neighbours import Neighbour, Neighbours, NeighbourStatistics
from braidlog.control.interface import AgentInfo
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.quantities import Address

if TYPE_CHECKING:
    from braidlog.agent.agent import Agent


class ZoneCache:
    """Follows the registry: whoever registers with the same zone and a cache is a neighbour.

    Agents that do not name a zone may be in different ones, where bytes between them cost more than the store does.
    Such an agent shares with those on its own host alone, which are the other shards of the same agent.
    """

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        self.neighbours = Neighbours(clock=agent.clock, entropy=agent.entropy.fork("zone cache"))

    async def start(self) -> str:
        """The address by which the others are told of it."""
        settings = self._agent.settings
        listen = settings.cache_listen
        where = listen if isinstance(listen, Address) else Address(settings.listen.host, 0)
        try:
            bound = await self.neighbours.serve(self._agent.cache, str(where))
        except OSError as error:
            raise InvalidSetting(
                f"cannot listen on {where}: {error.strerror or error}",
                help="Stop what uses the port, or set cache_listen=HOST:PORT, or off.",
            ) from error
        return str(Address(settings.advertised_host, Address.parse(bound).port))

    async def follow(self) -> None:
        """Follow the view for ever."""
        agent = self._agent
        while True:
            own = agent.view.agents.get(agent.node_id)
            self.neighbours.set(str(agent.node_id), self._around(own) if own is not None else ())
            await agent.view.wait_catalog_change()

    def _around(self, own: AgentInfo) -> Iterator[Neighbour]:
        for info in self._agent.view.agents.values():
            if info.cache_address and info.zone == own.zone and (own.zone or info.host == own.host):
                yield Neighbour(str(info.node_id), info.cache_address, info.incarnation)

    def statistics(self) -> NeighbourStatistics:
        return self.neighbours.statistics()

    async def close(self) -> None:
        await self.neighbours.close()
