"""One client connection: frames in, and responses out in the same order.

Back-pressure works both ways.
"""

import asyncio
import socket
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import structlog

from braidlog.agent.connections.request_memory import ArrivingFrame
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.connections.stalls import Progress
from braidlog.agent.entrance.entrance import Entrance
from braidlog.agent.entrance.login import FRAME_BYTES_MAX as LOGIN_FRAME_BYTES_MAX
from braidlog.agent.entrance.login import LOGIN_S_MAX
from braidlog.objects.store import Bytes
from braidlog.runtime.alarms import Alarm
from braidlog.runtime.limits import FRAME_BYTES_MAX
from braidlog.runtime.sockets import leave_unpaced
from braidlog.runtime.tally import Tally
from braidlog.security.principals import ANONYMOUS_USER, principal_of
from braidlog.security.rights import NO_RIGHTS, Rights
from braidlog.wire.header import RequestHeader
from braidlog.wire.produce_opening import ProduceOpening

if TYPE_CHECKING:
    from braidlog.agent.connections.open_connections import OpenConnections
    from braidlog.agent.read_path.parked import RepeatedFetches

log = structlog.get_logger(__name__)

RECEIVE_BYTES = 64 * 1024
"""The size of the receive buffer. Many small frames arrive in one read; a large frame gets a buffer of its own."""
FRAMES_PER_LOOK = 8
"""How many frames of one read are handled before the connection asks whether the turn has time for more."""
REQUESTS_IN_FLIGHT_MAX = 1000
LARGE_ANSWER_BYTES = 64 * 1024
"""Answers larger than this count against `response_budget_bytes`."""
JOIN_BYTES_MAX = 64 * 1024
SEND_BUFFER_BYTES = 512 * 1024
"""The size of each socket's send buffer. By default the system grows it to megabytes. Large answers then leave the
processor's cache and come back, which makes sending half as expensive again."""

_LENGTH = Struct(">i")


class ColdRequest(NamedTuple):
    header: RequestHeader
    body: memoryview
    slot: ResponseSlot


class Dispatch(Protocol):
    """Takes the requests of all connections."""

    def dispatch(self, connection: "KafkaConnection", frame: memoryview, slot: ResponseSlot) -> None:
        """Handle a request, now or later, and fill its slot."""


class KafkaConnection(asyncio.BufferedProtocol):
    def __init__(self, connections: "OpenConnections", dispatcher: Dispatch, entrance: Entrance) -> None:
        self._connections = connections
        self._entrance = entrance
        self.listener = entrance.name
        self.login = entrance.new_login()
        self.is_gated = self.login is not None
        """Whether each request must be asked whether its client has logged in."""
        self._frame_bytes_max = FRAME_BYTES_MAX if self.login is None else LOGIN_FRAME_BYTES_MAX
        self._login_alarm = Alarm(self._login_is_late)
        self._dispatcher = dispatcher
        self._turns = connections.turns
        self._request_memory = connections.request_memory
        self.response_memory = connections.response_memory
        self.meters = connections.meters
        self._now_s = connections.clock.monotonic_s
        self._transport: asyncio.Transport | None = None
        self._receive = bytearray(RECEIVE_BYTES)
        self._receive_view = memoryview(self._receive)
        self._filled = 0
        self._parsed = 0
        self._frame: ArrivingFrame | None = None
        """The large frame that is being read into its own buffer."""
        self._slots: deque[ResponseSlot] = deque()
        self._leaving_bytes = 0
        """Room for responses that the client has not taken yet."""
        self._waiting_for_memory = False
        self._is_in_line = False
        """Whether received frames wait for a turn of the event loop that has time for them."""
        self._received_s = 0.0
        """The time of the last read."""
        self._writing_paused = False
        self._reading_paused = False
        self._draining = False
        self._muted = Alarm(self._unmute)
        """Set while nothing is read, because the client has exceeded its quota."""
        self._flush_handle: asyncio.Handle | None = None
        self.peer_host = ""
        self.user = ANONYMOUS_USER
        self.rights: Rights = NO_RIGHTS
        """What the client may do. Set when it is known who it is."""
        self.is_closed = False
        self.opening: ProduceOpening | None = None
        """The opening of the last produce request that had one. The next request is likely to have the same."""
        self.repeated_fetches: RepeatedFetches | None = None
        """The last fetches that found nothing. The next fetch is likely to equal one of them."""
        self.produced_topic: tuple[str, bytes] | None = None
        """The topic's name and id in the last produce request that was fully parsed."""
        self.cold: deque[ColdRequest] = deque()
        """Cold requests in their order. The first is being served."""
        self.produce_tail: asyncio.Task[None] | None = None
        """The last produce request that could not be handed on at once. Later ones must not overtake it."""

    # ── transport callbacks ──

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.peer_host = str(peer[0]) if isinstance(peer, tuple) else "local"
        self._transport.set_write_buffer_limits(high=4 * 1024 * 1024)
        user = self._entrance.user_of(transport.get_extra_info("peercert"))
        if user is None:
            self.close("no rule makes a user of its certificate: see ssl_principal_mapping_rules")
            return
        self.user = user
        if self.login is None:
            self.rights = self._rights()
        else:
            self._login_alarm.put_off(LOGIN_S_MAX)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # notices a client whose machine is gone
            leave_unpaced(connection)
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._muted.cancel()
        self._login_alarm.cancel()
        if self._frame is not None:
            self._request_memory.drop(self._frame)
            self._frame = None
        for slot in self._slots:
            if slot.framed is not None:
                self._let_go(slot)
            elif slot.front is not None and not slot.front.done():
                slot.front.set_result(None)
        self.response_memory.release(self._leaving_bytes)
        self._leaving_bytes = 0
        if self.repeated_fetches is not None:
            self.repeated_fetches.leave()
        self._connections.remove(self)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._adjust_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        leaving_bytes, self._leaving_bytes = self._leaving_bytes, 0
        self.response_memory.release(leaving_bytes)
        self._adjust_reading()
        self._send_ready()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._request_memory.unfilled(self._frame)
        if self._parsed == self._filled:
            self._parsed = self._filled = 0
        elif RECEIVE_BYTES - self._filled < 4096:
            self._move_to_front()
        return self._receive_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._received_s = self._now_s()
        frame = self._frame
        if frame is None:
            self._filled += nbytes
            self._parse()
            return
        frame.filled_bytes += nbytes
        if frame.filled_bytes == frame.length:
            self._frame = None
            self._request_memory.complete(frame)
            self._handle(frame.view)
            self._parse()
        else:
            self._count(frame)

    # ── who it is ──

    def _rights(self) -> Rights:
        return self._connections.authorizer.rights_of(principal_of(self.user), self.peer_host)

    def identify(self, user: str, *, is_final: bool) -> None:
        """Take the connection for this user's.

        If that is final, no request is asked again whether its client has logged in.
        """
        self.user = user
        self.rights = self._rights()
        self.is_gated = not is_final
        self._frame_bytes_max = FRAME_BYTES_MAX
        self._login_alarm.cancel()

    def _login_is_late(self) -> None:
        self.close("it did not log in")

    # ── frames ──

    def _parse(self) -> None:
        """Handle all whole frames in the receive buffer.

        The rest is the start of the next frame.
        """
        # The receive buffer is used again at once, so the whole frames are copied out, in one copy.
        copy: memoryview | None = None
        origin = self._parsed
        handled_count, has_time = 0, True
        while (
            not self.is_closed
            and not self._waiting_for_memory
            and not self._muted.is_set
            and self._filled - self._parsed >= 4
        ):
            start = self._parsed + 4
            length = _LENGTH.unpack_from(self._receive, self._parsed)[0]
            if not 0 < length <= self._frame_bytes_max:
                self.close(f"frame of {length} bytes: not Kafka, or over the limit of {self._frame_bytes_max}")
                return
            end = start + length
            if self._filled < end:
                if length > RECEIVE_BYTES - 4:
                    self._begin_frame(start, length)
                elif end > RECEIVE_BYTES:
                    self._move_to_front()
                return
            if handled_count % FRAMES_PER_LOOK == 0 and end < self._filled:
                has_time = self._turns.has_time()
            if handled_count and not has_time:
                self._get_in_line()
                return
            if not self._request_memory.try_admit(length):
                self._waiting_for_memory = True
                self._adjust_reading()
                self._request_memory.admit_later(length, self._memory_granted)
                return
            if copy is None:
                # The first frame never waits. If it is the only one for now, copying all of them would be wasted work,
                # and the copy would stay in memory as long as this request.
                copy = memoryview(bytes(self._receive_view[origin : self._filled if has_time else end]))
            self._parsed = end
            self._handle(copy[start - origin : end - origin])
            handled_count += 1

    def _get_in_line(self) -> None:
        self._is_in_line = True
        self._adjust_reading()
        self._turns.call_later(self._parse_on)

    def _move_to_front(self) -> None:
        """Make room in the receive buffer for the rest of a frame that fits there."""
        rest = self._filled - self._parsed
        self._receive_view[:rest] = bytes(self._receive_view[self._parsed : self._filled])
        self._parsed, self._filled = 0, rest

    def _parse_on(self) -> None:
        """Continue with frames that an earlier turn of the event loop had no time for."""
        self._is_in_line = False
        self._parse()
        self._adjust_reading()

    def _begin_frame(self, start: int, length: int) -> None:
        """Give a frame its own buffer if it does not fit the receive buffer.

        The rest of the frame is read into that buffer.
        """
        self._frame = self._request_memory.begin(length, self._receive_view[start : self._filled])
        self._parsed = self._filled = 0
        self._count(self._frame)

    def _count(self, frame: ArrivingFrame) -> None:
        if not self._request_memory.count(frame):
            self._request_memory.resume_later(frame, self._adjust_reading)
            self._adjust_reading()

    def _memory_granted(self) -> None:
        start = self._parsed + 4
        length = _LENGTH.unpack_from(self._receive, self._parsed)[0]
        self._waiting_for_memory = False
        if self.is_closed:
            self._request_memory.release(length)
            return
        self._parsed = start + length
        self._handle(memoryview(bytes(self._receive_view[start : self._parsed])))
        self._parse()
        self._adjust_reading()

    def _handle(self, frame: memoryview) -> None:
        slot = ResponseSlot(self, len(frame), self._received_s)
        self._slots.append(slot)
        if len(self._slots) >= REQUESTS_IN_FLIGHT_MAX:
            self._adjust_reading()
        self._dispatcher.dispatch(self, frame, slot)

    # ── responses ──

    def slot_filled(self, slot: ResponseSlot, *, at_once: bool = False) -> None:
        if self.is_closed:
            self._let_go(slot)
            return
        # Responses that become ready in the same turn of the event loop are sent in one write.
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
        # Requests that arrived in one read took equally long, and are counted together.
        tally: Tally | None = None
        received_s, alike_count, now_s = 0.0, 0, self._now_s()
        while slots and (framed := slots[0].framed) is not None and not self._writing_paused:
            slot = slots.popleft()
            if slot.tally is not tally or slot.received_s != received_s:
                if tally is not None:
                    tally.observe(now_s - received_s, alike_count)
                tally, received_s, alike_count = slot.tally, slot.received_s, 0
            alike_count += 1
            released += slot.held_bytes
            leaving += slot.answer_bytes
            slot.held_bytes = slot.answer_bytes = 0
            out += framed
        if tally is not None:
            tally.observe(now_s - received_s, alike_count)
        if out:
            self._write(out)
        if leaving:
            if self._writing_paused:
                self._leaving_bytes += leaving
            else:
                self.response_memory.release(leaving)
        if slots and (front := slots[0].front) is not None and not front.done() and not self._writing_paused:
            front.set_result(None)
        if was_full:
            self._adjust_reading()
        if released:
            self._request_memory.release(released)
        if self._draining and not slots:
            self.close("")

    def _write(self, out: list[Bytes]) -> None:
        """Write pieces, joined if they are small: one write is then cheaper than many."""
        transport = cast(asyncio.Transport, self._transport)
        if sum(map(len, out)) < JOIN_BYTES_MAX:
            transport.write(b"".join(out))
        else:
            transport.writelines(out)

    def _let_go(self, slot: ResponseSlot) -> None:
        """Release the memory of a request whose response nobody will get."""
        held_bytes, answer_bytes = slot.held_bytes, slot.answer_bytes
        slot.held_bytes = slot.answer_bytes = 0  # first: whoever gets the memory may end this connection
        self._request_memory.release(held_bytes)
        self.response_memory.release(answer_bytes)

    def is_first(self, slot: ResponseSlot) -> bool:
        """Whether a response would be sent as soon as it is filled.

        Always true when the connection is closed.
        """
        return self.is_closed or (not self._writing_paused and self._slots[0] is slot)

    # ── flow ──

    def progress(self) -> Progress:
        transport = self._transport
        unsent_bytes = transport.get_write_buffer_size() if transport is not None and self._leaving_bytes else 0
        frame = self._frame
        if frame is not None and frame.is_waiting:  # the client is not to blame
            frame = None
        return Progress(frame, frame.filled_bytes if frame is not None else 0, unsent_bytes)

    def _adjust_reading(self) -> None:
        if self._transport is None or self.is_closed:
            return
        pause = (
            self._waiting_for_memory
            or self._is_in_line
            or (self._frame is not None and self._frame.is_waiting)
            or self._muted.is_set
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
        """Stop reading for a while, because the client has exceeded its quota."""
        if self.is_closed:
            return
        self._muted.put_off(duration_s)
        self._adjust_reading()

    def _unmute(self) -> None:
        self._parse()
        self._adjust_reading()

    def drain(self) -> None:
        """Stop reading, and close once every request is answered."""
        self._draining = True
        self._adjust_reading()
        if not self._slots:
            self.close("")

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """Close after sending what is already written; with `at_once`, close now."""
        if self._transport is None or (self._transport.is_closing() and not at_once):
            return
        if reason:
            log.warning("connection closed", peer=self.peer_host, reason=reason)
        self.is_closed = True
        if at_once:
            self._transport.abort()
        else:
            self._transport.close()
