"""One client connection: frames in, responses out in the order of their requests, and back-pressure both ways."""

import asyncio
import socket
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, cast

import structlog

from braidlog.agent.quotas import ANONYMOUS
from braidlog.agent.stalls import Progress
from braidlog.objects.store import Bytes
from braidlog.runtime.buffers import unzeroed
from braidlog.runtime.limits import FRAME_BYTES_MAX
from braidlog.runtime.sockets import leave_unpaced
from braidlog.wire.produce_opening import ProduceOpening

if TYPE_CHECKING:
    from braidlog.agent.dispatch import Dispatcher
    from braidlog.agent.parked import RepeatedFetches

log = structlog.get_logger(__name__)

RECEIVE_BYTES = 64 * 1024
"""Many small frames arrive in one read; a frame larger than what is left gets a buffer of its own."""
REQUESTS_IN_FLIGHT_MAX = 1000
JOIN_BYTES_MAX = 64 * 1024
SEND_BUFFER_BYTES = 512 * 1024
"""Of the system, for each connection. Left to itself it grows to megabytes, and a large answer then goes out of the
processor's cache and back: that makes sending half as expensive again."""

_LENGTH = Struct(">i")


class ResponseSlot:
    """A response's place in the line. Filled in any order, sent in the order of the requests."""

    __slots__ = ("answer_bytes", "connection", "framed", "held_bytes", "turn")

    def __init__(self, connection: "KafkaConnection", held_bytes: int) -> None:
        self.connection = connection
        self.held_bytes = held_bytes
        """Of the request."""
        self.answer_bytes = 0
        """Room that was taken for the response."""
        self.turn: asyncio.Future[None] | None = None
        """Set by who waits until all responses before this one are sent."""
        self.framed: list[Bytes] | None = None

    def try_take_room(self, answer_bytes: int) -> bool:
        """Room for a large response, if there is any and its turn has come. It is given back when the response is sent.

        Only the first in line takes room. What others took, they could not give back before the first is sent, and that
        one might wait for just this room.
        """
        connection = self.connection
        if not connection.is_first(self) or not connection.answer_memory.try_acquire(answer_bytes):
            return False
        self.answer_bytes = answer_bytes
        return True

    async def take_room(self, answer_bytes: int) -> None:
        """The same, as soon as possible."""
        connection = self.connection
        if not connection.is_first(self):
            self.turn = asyncio.get_running_loop().create_future()
            await self.turn
        await connection.answer_memory.acquire(answer_bytes)
        self.answer_bytes = answer_bytes

    def fill(self, buffers: list[Bytes]) -> None:
        """Send this response (without its length, which is added here) as soon as its turn has come. An empty list is
        no response at all: a produce request with acks=0 gets none."""
        self.fill_framed([sum(map(len, buffers)).to_bytes(4, "big"), *buffers] if buffers else [])

    def fill_framed(self, framed: list[Bytes]) -> None:
        """As `fill`, with a response that begins with its length."""
        self.framed = framed
        self.connection.slot_filled(self)

    def send_framed(self, framed: Bytes) -> None:
        """As `fill_framed`, for who has a single answer to give: it does not wait for others in the same turn."""
        self.framed = [framed]
        self.connection.slot_filled(self, at_once=True)

    def abandon(self, reason: str) -> None:
        """There is no answer to give: close the connection."""
        self.connection.close(reason)
        self.fill([])


class KafkaConnection(asyncio.BufferedProtocol):
    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self.answer_memory = dispatcher.answer_memory
        self._transport: asyncio.Transport | None = None
        self._receive = bytearray(RECEIVE_BYTES)
        self._receive_view = memoryview(self._receive)
        self._filled = 0
        self._parsed = 0
        self._frame: memoryview | None = None
        """The large frame that is being read, in a buffer of its own."""
        self._frame_filled = 0
        self._slots: deque[ResponseSlot] = deque()
        self._leaving_bytes = 0
        """Room for responses that are on their way to a client that is slow to take them."""
        self._waiting_for_memory = False
        self._writing_paused = False
        self._reading_paused = False
        self._draining = False
        self._unmute_handle: asyncio.TimerHandle | None = None
        """Set while nothing is read because the client took more than its quota."""
        self._flush_handle: asyncio.Handle | None = None
        self.peer_host = ""
        self.user = ANONYMOUS
        self.is_closed = False
        self.opening: ProduceOpening | None = None
        """Of the last produce request that had one: the next one is likely to open alike."""
        self.repeated_fetches: RepeatedFetches | None = None
        """The last fetches that found nothing: the next one is likely to be the same as one of them."""
        self.produced_topic: tuple[str, bytes] | None = None
        """Name and id, from the last produce request that was taken apart."""
        self.cold_tail: asyncio.Task[None] | None = None
        """The last cold request: those of one connection are handled one after the other, as clients expect."""

    # ── transport callbacks ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_host = str(peer[0]) if isinstance(peer, tuple) else "local"
        self._transport.set_write_buffer_limits(high=4 * 1024 * 1024)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a client's machine may just be gone
            leave_unpaced(connection)
        self._dispatcher.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        if self._unmute_handle is not None:
            self._unmute_handle.cancel()
            self._unmute_handle = None
        if self._frame is not None:
            self._dispatcher.memory.release(len(self._frame))
            self._frame = None
        for slot in self._slots:
            if slot.framed is not None:
                self._let_go(slot)
            elif slot.turn is not None and not slot.turn.done():
                slot.turn.set_result(None)
        self.answer_memory.release(self._leaving_bytes)
        self._leaving_bytes = 0
        if self.repeated_fetches is not None:
            self.repeated_fetches.leave()
        self._dispatcher.disconnected(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        leaving_bytes, self._leaving_bytes = self._leaving_bytes, 0
        self.answer_memory.release(leaving_bytes)
        self._adjust_reading()
        self._send_ready()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._frame[self._frame_filled :]
        if self._parsed == self._filled:
            self._parsed = self._filled = 0
        elif RECEIVE_BYTES - self._filled < 4096:
            rest = self._filled - self._parsed
            self._receive_view[:rest] = bytes(self._receive_view[self._parsed : self._filled])
            self._parsed, self._filled = 0, rest
        return self._receive_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is None:
            self._filled += nbytes
            self._parse()
            return
        self._frame_filled += nbytes
        if self._frame_filled == len(self._frame):
            frame, self._frame = self._frame, None
            self._handle(frame)
            self._parse()

    # ── frames ──

    def _parse(self) -> None:
        """Handle every whole frame at hand; what is left is the start of the next one."""
        # The receive buffer is used again at once, so what is whole is copied out, all in one go.
        copy: memoryview | None = None
        origin = self._parsed
        while (
            not self.is_closed
            and not self._waiting_for_memory
            and self._unmute_handle is None
            and self._filled - self._parsed >= 4
        ):
            start = self._parsed + 4
            length = _LENGTH.unpack_from(self._receive, self._parsed)[0]
            if not 0 < length <= FRAME_BYTES_MAX:
                self.close(f"a frame of {length} bytes: not Kafka, or past the limit of {FRAME_BYTES_MAX}")
                return
            if not self._dispatcher.memory.try_acquire(length):
                self._waiting_for_memory = True
                self._adjust_reading()
                self._dispatcher.memory.acquire_later(length, self._memory_granted)
                return
            if self._filled - start < length:
                self._begin_frame(start, length)
                return
            if copy is None:
                copy = memoryview(bytes(self._receive_view[origin : self._filled]))
            self._parsed = start + length
            self._handle(copy[start - origin : self._parsed - origin])

    def _begin_frame(self, start: int, length: int) -> None:
        """A frame that is not whole yet gets a buffer of its own, which the rest is read into."""
        at_hand = self._filled - start
        frame = memoryview(unzeroed(length))
        frame[:at_hand] = self._receive_view[start : self._filled]
        self._frame, self._frame_filled = frame, at_hand
        self._parsed = self._filled = 0

    def _memory_granted(self) -> None:
        start = self._parsed + 4
        length = _LENGTH.unpack_from(self._receive, self._parsed)[0]
        self._waiting_for_memory = False
        if self.is_closed:
            self._dispatcher.memory.release(length)
            return
        if self._filled - start < length:
            self._begin_frame(start, length)
        else:
            self._parsed = start + length
            self._handle(memoryview(bytes(self._receive_view[start : self._parsed])))
            self._parse()
        self._adjust_reading()

    def _handle(self, frame: memoryview) -> None:
        slot = ResponseSlot(self, len(frame))
        self._slots.append(slot)
        if len(self._slots) >= REQUESTS_IN_FLIGHT_MAX:
            self._adjust_reading()
        self._dispatcher.dispatch(self, frame, slot)

    # ── responses ──

    def slot_filled(self, slot: ResponseSlot, *, at_once: bool = False) -> None:
        if self.is_closed:
            self._let_go(slot)
            return
        # Responses that become ready in the same turn of the event loop go out in one write.
        if self._flush_handle is None and self._slots[0].framed is not None:
            if at_once:
                self._send_ready()
            else:
                self._flush_handle = asyncio.get_running_loop().call_soon(self._send_ready)

    def _send_ready(self) -> None:
        self._flush_handle = None
        if self._transport is None or self.is_closed:
            return
        slots = self._slots
        was_full = len(slots) >= REQUESTS_IN_FLIGHT_MAX
        out: list[Bytes] = []
        released = leaving = 0
        while slots and (framed := slots[0].framed) is not None and not self._writing_paused:
            slot = slots.popleft()
            released += slot.held_bytes
            leaving += slot.answer_bytes
            slot.held_bytes = slot.answer_bytes = 0
            out += framed
        if out:
            self._write(out)
        if leaving:
            if self._writing_paused:
                self._leaving_bytes += leaving
            else:
                self.answer_memory.release(leaving)
        if slots and (turn := slots[0].turn) is not None and not turn.done() and not self._writing_paused:
            turn.set_result(None)
        if was_full:
            self._adjust_reading()
        if released:
            self._dispatcher.memory.release(released)
        if self._draining and not slots:
            self.close("")

    def _write(self, out: list[Bytes]) -> None:
        """Many small pieces are cheaper joined, and few large ones as they are."""
        transport = cast(asyncio.Transport, self._transport)
        if sum(map(len, out)) < JOIN_BYTES_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)

    def _let_go(self, slot: ResponseSlot) -> None:
        """Of a response that nobody will get."""
        self._dispatcher.memory.release(slot.held_bytes)
        self.answer_memory.release(slot.answer_bytes)
        slot.held_bytes = slot.answer_bytes = 0

    def is_first(self, slot: ResponseSlot) -> bool:
        """Whether it would be sent at once, if it were there. To nobody, where the connection is closed."""
        return self.is_closed or (not self._writing_paused and self._slots[0] is slot)

    # ── flow ──

    def progress(self) -> Progress:
        transport = self._transport
        unsent_bytes = transport.get_write_buffer_size() if transport is not None and self._leaving_bytes else 0
        return Progress(self._frame, self._frame_filled, unsent_bytes)

    def _adjust_reading(self) -> None:
        if self._transport is None or self.is_closed:
            return
        pause = (
            self._waiting_for_memory
            or self._unmute_handle is not None
            or self._writing_paused
            or self._draining
            or len(self._slots) >= REQUESTS_IN_FLIGHT_MAX
        )
        if pause != self._reading_paused:
            self._reading_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def mute(self, duration_s: float) -> None:
        """Read nothing more for so long: the client has to pay back what it took beyond its quota."""
        if self.is_closed:
            return
        loop = asyncio.get_running_loop()
        until_s = loop.time() + duration_s
        if self._unmute_handle is not None:
            if self._unmute_handle.when() >= until_s:
                return
            self._unmute_handle.cancel()
        self._unmute_handle = loop.call_at(until_s, self._unmute)
        self._adjust_reading()

    def _unmute(self) -> None:
        self._unmute_handle = None
        self._parse()
        self._adjust_reading()

    def drain(self) -> None:
        """Read no more; close when everything that was asked has been answered."""
        self._draining = True
        self._adjust_reading()
        if not self._slots:
            self.close("")

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """What is on its way out still goes out, unless it is `at_once`."""
        if self._transport is None or (self._transport.is_closing() and not at_once):
            return
        if reason:
            log.warning("connection closed", peer=self.peer_host, reason=reason)
        self.is_closed = True
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()
