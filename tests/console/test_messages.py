"""What of a message is sent to the page."""

import json
from types import SimpleNamespace

from braidlog.console.messages import HEADER_BYTES_MAX, HEADERS_SHOWN_MAX, SHOWN_BYTES_MAX, row_of


def test_a_message_of_headers_alone_takes_little_of_the_page() -> None:
    headers = [("name " * 10_000, bytes(100_000))] * 50
    message = SimpleNamespace(
        partition=lambda: 0,
        offset=lambda: 7,
        timestamp=lambda: (1, 0),
        key=lambda: b"key",
        value=lambda: None,
        headers=lambda: headers,
    )
    row = row_of(message)
    assert (len(row["headers"]), row["headers_left_out"]) == (HEADERS_SHOWN_MAX, 50 - HEADERS_SHOWN_MAX)
    assert row["headers"][0]["value"] | {"text": ""} == {"kind": "text", "text": "", "bytes": 100_000, "cut": True}
    assert len(json.dumps(row)) < HEADERS_SHOWN_MAX * 8 * HEADER_BYTES_MAX + SHOWN_BYTES_MAX
