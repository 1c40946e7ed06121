"""The place of one response among those of its connection."""

import asyncio
from typing import TYPE_CHECKING

from braidlog.objects.store import Bytes
from braidlog.runtime.tally import Tally

if TYPE_CHECKING:
    from braidlog.agent.connections.connection import KafkaConnection


class ResponseSlot:
    """The place of one response.

    Slots are filled in any order and sent in the order of their requests.
    """

    __slots__ = ("answer_bytes", "connection", "framed", "front", "held_bytes", "received_s", "tally")

    def __init__(self, connection: "KafkaConnection", held_bytes: int, received_s: float) -> None:
        self.connection = connection
        self.received_s = received_s
        self.tally: Tally | None = None
        """Counts the time that the request took. None until its API is known."""
        self.held_bytes = held_bytes
        """The bytes of the request, which count against request memory until it is answered."""
        self.answer_bytes = 0
        """The response memory that this slot has taken."""
        self.front: asyncio.Future[None] | None = None
        """Set while somebody waits until all responses before this one are sent."""
        self.framed: list[Bytes] | None = None

    def try_take_room(self, answer_bytes: int) -> bool:
        """Take room for a large response if there is room and the slot is first in line.

        Sending gives it back.

        Only the first slot may take room. The others could give theirs back only after the first is sent, and the first
        might be waiting for that room.
        """
        connection = self.connection
        if not connection.is_first(self) or not connection.response_memory.try_acquire(answer_bytes):
            return False
        self.answer_bytes = answer_bytes
        return True

    async def take_room(self, answer_bytes: int) -> None:
        """Take room for a large response as soon as possible."""
        connection = self.connection
        if not connection.is_first(self):
            self.front = asyncio.get_running_loop().create_future()
            await self.front
        await connection.response_memory.acquire(answer_bytes)
        self.answer_bytes = answer_bytes

    def settle_room(self, answer_bytes: int) -> None:
        """Correct the room taken to the real size of the response."""
        if answer_bytes != self.answer_bytes:
            self.connection.response_memory.resize(self.answer_bytes, answer_bytes)
            self.answer_bytes = answer_bytes

    def fill(self, buffers: list[Bytes]) -> None:
        """Send this response as soon as those before it are sent.

        Its length is added here.

        An empty list means no response: a produce request with acks=0 gets none.
        """
        self.fill_framed([sum(map(len, buffers)).to_bytes(4, "big"), *buffers] if buffers else [])

    def fill_framed(self, framed: list[Bytes]) -> None:
        """Does what `fill` does, for a response that already begins with its length."""
        self.framed = framed
        self.connection.slot_filled(self)

    def send_framed(self, framed: Bytes) -> None:
        """Does what `fill_framed` does, without waiting for other responses.

        `fill_framed` joins the responses of one turn of the event loop.
        """
        self.framed = [framed]
        self.connection.slot_filled(self, at_once=True)

    def count_error(self, api_key: int, code: int, count: int = 1) -> None:
        """Count an error code that the answer has `count` times."""
        self.connection.meters.count_error(api_key, code, count)

    def abandon(self, reason: str) -> None:
        """Give no answer, and close the connection."""
        self.connection.close(reason)
        self.fill([])
