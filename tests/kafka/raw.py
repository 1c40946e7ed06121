"""Kafka by hand: bytes on a socket, for what no client would send."""

import socket
import struct

API_VERSIONS = 18


def header(api_key: int, version: int, correlation_id: int = 7, client_id: bytes | None = b"tests") -> bytes:
    """A request header of version 1, as all non-flexible requests have it."""
    name = struct.pack(">h", -1) if client_id is None else struct.pack(">h", len(client_id)) + client_id
    return struct.pack(">hhi", api_key, version, correlation_id) + name


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


class Peer:
    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_frame(self) -> bytes:
        (length,) = struct.unpack(">i", self._read(4))
        return self._read(length)

    def _read(self, length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = self.socket.recv(length - len(data))
            if not piece:
                raise ConnectionError("closed by the agent")
            data += piece
        return data

    def is_closed(self) -> bool:
        """Waits for it: an answer that comes instead is a failure."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def is_alive(self) -> bool:
        self.send(frame(header(API_VERSIONS, 0, 99)))
        answer = self.read_frame()
        return answer[:6] == struct.pack(">ih", 99, 0)
