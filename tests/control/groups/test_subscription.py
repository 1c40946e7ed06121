"""Subscriptions as consumers send them, and as an attacker might."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.control.groups.classic.driver import subscription

from braidlog.control.groups.subscription import subscribed_topics


@given(topics=st.frozensets(st.text(max_size=20), max_size=10), version=st.integers(0, 3), tail=st.binary(max_size=20))
@settings(max_examples=50)
def test_topics_of_every_version(topics: frozenset[str], version: int, tail: bytes) -> None:
    metadata = struct.pack(">h", version) + subscription(*topics)[2:] + tail
    assert subscribed_topics(metadata) == topics


@given(metadata=st.binary(max_size=60))
@settings(max_examples=200)
def test_any_bytes_are_safe(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)
    assert topics is None or all(isinstance(topic, str) for topic in topics)


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        b"\x00",
        struct.pack(">hi", 0, -1),
        struct.pack(">hi", -1, 0),
        struct.pack(">hi", 0, 2**31 - 1) + bytes(100),
        struct.pack(">hih", 0, 1, 5) + b"abc",
        struct.pack(">hih", 0, 1, -1) + b"abc",
        struct.pack(">hih", 0, 2, 1) + b"abc",
        struct.pack(">hih", 0, 1, 2) + b"\xff\xff",
    ],
)
def test_what_is_no_subscription(metadata: bytes) -> None:
    assert subscribed_topics(metadata) is None
