"""The client's side of the cold messages.

It encodes requests and decodes answers, through kio's schemas.
"""

import io
from functools import cache
from typing import Any

from kio.index import load_payload_module, load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType


@cache
def request_types(api_key: int, version: int) -> Any:
    """Return the module with the request's classes."""
    return load_payload_module(api_key, version, EntityType.request)


@cache
def _request_writers(api_key: int, version: int) -> tuple[type, Any, Any]:
    schema = load_request_schema(api_key, version)
    header = schema.__header_schema__
    return header, entity_writer(header), entity_writer(schema)


@cache
def _response_readers(api_key: int, version: int) -> tuple[Any, Any]:
    schema = load_response_schema(api_key, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


def encode_call(api_key: int, version: int, correlation_id: int, client_id: str, request: Any) -> bytes:
    """Encode a request as a whole frame, with its length in front."""
    header_type, write_header, write_body = _request_writers(api_key, version)
    out = io.BytesIO()
    header = header_type(
        request_api_key=api_key,
        request_api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    write_header(out, header)
    write_body(out, request)
    frame = out.getvalue()
    return len(frame).to_bytes(4, "big") + frame


def decode_answer(api_key: int, version: int, frame: bytes) -> Any:
    """Decode an answer from its frame, which comes without the length."""
    read_header, read_body = _response_readers(api_key, version)
    _, position = read_header(frame, 0)
    body, _ = read_body(frame, position)
    return body
