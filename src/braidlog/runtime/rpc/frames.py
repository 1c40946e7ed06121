"""The frames of remote calls, and a connection that cuts its stream into them.

A frame is its length (u32, of what follows), a kind (u8), the call's number (u64), and then, by kind:

    1  call     deadline in ms (u32, 0: none), length of the method's name (u8), name, body
    2  answer   body
    3  error    msgpack [class, message, help, remedy]
    4  cancel   nothing: the caller no longer waits
    5  hello    the caller's nonce: what follows proves the cluster's secret, if there is one
    6  challenge  the server's nonce, and its proof
    7  proof    the caller's proof

Numbers are big-endian. Bodies are bytes; handler and caller agree on what they mean.
"""

import asyncio
import socket
import struct
from abc import ABC, abstractmethod
from typing import cast

import structlog

_log = structlog.get_logger(__name__)

LENGTH = struct.Struct(">I")
HEAD = struct.Struct(">IBQ")
CALL = struct.Struct(">IBQIB")
CALL_REST = struct.Struct(">IB")
CALL_KIND, ANSWER_KIND, ERROR_KIND, CANCEL_KIND = 1, 2, 3, 4
HELLO_KIND, CHALLENGE_KIND, PROOF_KIND = 5, 6, 7
DEADLINE_MS_MAX = 2**32 - 1


class FrameProtocol(asyncio.Protocol, ABC):
    """Cuts the stream into frames, and joins writes.

    Everything sent in one turn of the loop becomes one write.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._needed_bytes = HEAD.size
        self._is_left = False
        """Whether this side has closed the connection. What has arrived behind the reason for it counts no more."""
        self._unsent: list[bytes] = []
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connection: socket.socket | None = transport.get_extra_info("socket")
        if connection is not None and connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        if len(received) < self._needed_bytes:
            return
        start = 0
        end = len(received)
        with memoryview(received) as view:
            while end - start >= HEAD.size:
                length, kind, number = HEAD.unpack_from(view, start)
                if length > self._message_bytes_max or length < HEAD.size - LENGTH.size:
                    _log.warning("closing a connection that sent a frame of an impossible length", length_bytes=length)
                    self.close()
                    return
                frame_end = start + LENGTH.size + length
                if frame_end > end:
                    break
                self.frame_received(kind, number, bytes(view[start + HEAD.size : frame_end]))
                start = frame_end
                if self._is_left:
                    break
        if start:
            del received[:start]
        # Until the next frame is complete there is no use in looking at it again. Its length counts only once its whole
        # head is here: the loop above has checked it then.
        left = len(received)
        self._needed_bytes = LENGTH.unpack_from(received)[0] + LENGTH.size if left >= HEAD.size else HEAD.size

    @abstractmethod
    def frame_received(self, kind: int, number: int, rest: bytes) -> None: ...

    def send(self, *parts: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.extend(parts)

    def flush(self) -> None:
        if self._unsent and self._transport is not None and not self._transport.is_closing():
            unsent, self._unsent = self._unsent, []
            self._transport.write(unsent[0] if len(unsent) == 1 else b"".join(unsent))

    @property
    def writable(self) -> bool:
        """Whether the other side keeps up with what is sent to it."""
        return self._writable.is_set()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that were sent and that the other side has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def close(self) -> None:
        self._is_left = True
        if self._transport is not None:
            self.flush()
            self._transport.close()

    def abort(self) -> None:
        self._is_left = True
        if self._transport is not None:
            self._transport.abort()


def encode_frame(kind: int, number: int, body: bytes) -> tuple[bytes, bytes]:
    return HEAD.pack(HEAD.size - LENGTH.size + len(body), kind, number), body
