"""Makes Kafka calls that confluent-kafka has no method for."""

import socket
from typing import Any

from braidlog.clients.errors import CommandError
from braidlog.clients.login import client_properties, log_in, protected
from braidlog.clients.reachability import CONNECT_TIMEOUT_S
from braidlog.runtime.quantities import Address

CALL_TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1 << 28


def call(address: Address, api_key: int, version: int, request: Any) -> Any:
    """Send a request to the broker at `address`, and give its answer."""
    properties = client_properties()
    try:
        with (
            socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S) as plain,
            protected(plain, address.host, properties) as connection,
        ):
            connection.settimeout(CALL_TIMEOUT_S)

            def ask(api_key: int, version: int, request: Any) -> Any:
                return _ask(connection, api_key, version, request)

            log_in(ask, properties)
            return ask(api_key, version, request)
    except OSError as error:
        raise CommandError(
            f"{address} did not answer: {error.strerror or error}",
            help="Is an agent running there, and its control plane? Look at the agent's log.",
        ) from error


def _ask(connection: socket.socket, api_key: int, version: int, request: Any) -> Any:
    from braidlog.wire.calls import decode_answer, encode_call

    connection.sendall(encode_call(api_key, version, 1, "braid", request))
    length = int.from_bytes(_read(connection, 4), "big")
    if length > ANSWER_BYTES_MAX:
        raise ConnectionError("its answer is not Kafka")
    return decode_answer(api_key, version, _read(connection, length))


def raise_for(answer: Any, advice: str) -> None:
    """Raise the error of an answer, if it has one."""
    from kio.schema.errors import ErrorCode

    code = ErrorCode(answer.error_code)
    if code is not ErrorCode.none:
        raise CommandError(
            answer.error_message or code.name.replace("_", " "),
            help="It may pass: try again." if code.retriable else advice,
        )


def _read(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        piece = connection.recv(min(length - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the connection was closed")
        data += piece
    return bytes(data)
