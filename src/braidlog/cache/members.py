"""The members of a zone's ring: who owns an object, and how to reach each.

The owner follows from the names of the members alone (rendezvous hashing), so a member that comes or goes moves only
the objects that it owns. A member that does not answer is left out for a while.
"""

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from braidlog.runtime.clock import Clock
from braidlog.runtime.entropy import Entropy
from braidlog.runtime.errors import ControlUnavailable, DeadlineExceeded
from braidlog.runtime.rpc.client import RpcClient
from braidlog.runtime.tasks import TaskGroup

CONNECT_TIMEOUT_S = 1.0
"""Short, because members are near."""
LEFT_OUT_S = 10.0
"""How long a member that did not answer is left out."""


def owner_of(key: str, members: Mapping[str, object]) -> str | None:
    """Return the member that owns an object; None if there are no members."""
    return max(members, key=lambda name: (_weight(key, name), name), default=None)


def ranked(key: str, members: Iterable[str]) -> list[str]:
    """Return the members in the order in which they would own an object."""
    return sorted(members, key=lambda name: (_weight(key, name), name), reverse=True)


def _weight(key: str, member: str) -> bytes:
    return blake2b(f"{key}\n{member}".encode(), digest_size=8).digest()


class Members:
    """Calls members by their names. Connections are opened when they are first needed."""

    def __init__(self, members: Mapping[str, str], *, clock: Clock, entropy: Entropy, call_timeout_s: float) -> None:
        self._clock = clock
        self._entropy = entropy
        self._call_timeout_s = call_timeout_s
        self._members: dict[str, str] = {}
        self._clients: dict[str, RpcClient] = {}
        self._left_out_until_s: dict[str, float] = {}
        self._closing = TaskGroup("cache members that went")
        self.through_owner = self.around = 0
        self.set(members)

    def set(self, members: Mapping[str, str]) -> None:
        """Replace the members. Calls to members that are gone run to their end."""
        for name, address in self._members.items():
            if members.get(name) != address:
                self._left_out_until_s.pop(name, None)
                if (client := self._clients.pop(name, None)) is not None:
                    self._closing.spawn(self._close_later(client))
        self._members = dict(members)

    async def _close_later(self, client: RpcClient) -> None:
        await self._clock.sleep(self._call_timeout_s)
        await client.close()

    def owner(self, key: str) -> str | None:
        now_s = self._clock.monotonic_s()
        return owner_of(key, {name: 0 for name in self._members if self._left_out_until_s.get(name, 0.0) <= now_s})

    def is_present(self, name: str) -> bool:
        left_out_until_s = self._left_out_until_s.get(name, 0.0)
        return name in self._members and left_out_until_s <= self._clock.monotonic_s()

    async def call(self, name: str, method: str, body: bytes) -> bytes:
        """Call a member, and raise what it raises.

        A member that cannot be reached is left out from then on: `ControlUnavailable` says that it did nothing,
        `DeadlineExceeded` that the outcome is unknown."""
        client = self._clients.get(name)
        if client is None:
            client = RpcClient(
                self._members[name], self._clock, self._entropy.fork(name), connect_timeout_s=CONNECT_TIMEOUT_S
            )
            self._clients[name] = client
        try:
            answer = await client.call(method, body, self._call_timeout_s)
        except (ControlUnavailable, DeadlineExceeded):
            self.around += 1
            self._left_out_until_s[name] = self._clock.monotonic_s() + LEFT_OUT_S
            raise
        self.through_owner += 1
        return answer

    async def close(self) -> None:
        await self._closing.cancel_all()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()
