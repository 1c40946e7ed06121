"""How the nodes of a job find each other: through small objects in the store.

Each node writes its object again and again while it lives. The object's name says all that others must know, so that
one listing finds every node. A new node also calls those that it found, so that nobody waits for the next listing. Ages
are compared by the store's own times, so clocks of nodes may differ.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from braidlog.objects.keys import InvalidKey, NodeKey, parse_shuffle_node_key, shuffle_nodes_prefix
from braidlog.objects.store import Store, StoreError
from braidlog.runtime.clock import Clock

log = structlog.get_logger(__name__)

BEAT_S = 15.0
"""How often a node writes its object and lists the others'. Both are requests that cost money."""
GONE_S = 4 * BEAT_S
"""A node whose object is older than the newest one by this is gone."""
NODES_MAX = 1000
"""Nodes of one job that are looked at: one page of a listing."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    zone: str
    address: str


class Membership:
    """One node's knowledge of all nodes of a job, itself included."""

    def __init__(
        self,
        store: Store,
        job: str,
        own: Node,
        *,
        clock: Clock,
        body: Callable[[], bytes],
        on_change: Callable[[Mapping[str, Node]], None],
    ) -> None:
        """`body` makes the content of the node's object.

        `on_change` receives all nodes, by name.
        """
        self._store = store
        self._job = job
        self._own = own
        self._clock = clock
        self._body = body
        self._on_change = on_change
        self._key = NodeKey(job, own.name, own.zone, own.address)
        self._nodes: dict[str, Node] = {own.name: own}
        self._heard_in_look: dict[str, Node] = {}

    @property
    def nodes(self) -> Mapping[str, Node]:
        return self._nodes

    async def join(self) -> None:
        """Become known to the others, and learn of them."""
        await self._store.put(str(self._key), self._body(), overwrite=True)
        await self._look()

    async def run(self) -> None:
        """Stay known, and learn of nodes that come and go. Never returns."""
        while True:
            await self._clock.sleep(BEAT_S)
            try:
                await self.join()
            except StoreError as error:
                # Others notice only after several beats. What is known stays as it is.
                log.warning("the nodes of a shuffle could not be listed", error=str(error))

    async def leave(self) -> None:
        """Stop being known."""
        await self._store.delete([str(self._key)])

    def heard_of(self, node: Node) -> None:
        """Take note of a node that has called."""
        if len(self._nodes) < NODES_MAX:
            self._heard_in_look[node.name] = node
            self._change({**self._nodes, node.name: node})

    def heard_leaving(self, name: str) -> None:
        if name != self._own.name:
            self._change({known: node for known, node in self._nodes.items() if known != name})

    async def _look(self) -> None:
        self._heard_in_look = {}
        page = await self._store.list(shuffle_nodes_prefix(self._job), limit=NODES_MAX)
        newest_ms = max((found.modified_ms for found in page.objects), default=0)
        nodes = {self._own.name: self._own}
        for found in page.objects:
            if newest_ms - found.modified_ms > GONE_S * 1000:
                continue
            try:
                key = parse_shuffle_node_key(found.key)
            except InvalidKey:
                continue
            nodes.setdefault(key.name, Node(key.name, key.zone, key.address))
        # A node that called while the listing was under way may not be in it.
        self._change({**nodes, **self._heard_in_look})

    def _change(self, nodes: dict[str, Node]) -> None:
        if nodes != self._nodes:
            self._nodes = nodes
            self._on_change(nodes)
