"""No client's requests keep the loop from the others, and none is answered more often than it makes sense."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import wait_until
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.raw import Peer, frame, header
from tests.kafka.topics import create_topic
from tests.wire.kio_entities import encode, requests

from braidlog.runtime import turns

METADATA = 3
PIPELINED = 300


@pytest.fixture
def braidlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessBraidlog]:
    """An agent that gives each request a turn of the loop for itself, as it would if they took long."""
    monkeypatch.setattr(turns, "TURN_S", 0.0)
    with InProcessBraidlog(tmp_path) as running:
        yield running


@pytest.fixture
def peer(braidlog: InProcessBraidlog) -> Iterator[Peer]:
    peer = Peer(braidlog.bootstrap)
    yield peer
    peer.socket.close()


class Watched:
    """Counts turns of the loop, and notes in which of them Metadata requests were answered."""

    def __init__(self, braidlog: InProcessBraidlog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turn = 0
        self.answered_in: list[int] = []
        self.on_third_answer: Callable[[], None] = lambda: None
        metadata: Any = braidlog.agent.dispatcher._metadata
        answer = metadata.answer

        async def noted(*arguments: Any) -> bytes:
            self.answered_in.append(self.turn)
            if len(self.answered_in) == 3:
                self.on_third_answer()
            return await answer(*arguments)  # type: ignore[no-any-return]

        monkeypatch.setattr(metadata, "answer", noted)
        self._ticking = asyncio.run_coroutine_threadsafe(self._tick(), braidlog._loop)

    async def _tick(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def stop(self) -> None:
        self._ticking.cancel()


@pytest.fixture
def watched(braidlog: InProcessBraidlog, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched = Watched(braidlog, monkeypatch)
    yield watched
    watched.stop()


ALL_TOPICS = frame(header(METADATA, 1) + struct.pack(">i", -1))


def test_pipelined_requests_let_others_in_between(peer: Peer, watched: Watched) -> None:
    peer.send(ALL_TOPICS * PIPELINED)
    for _ in range(PIPELINED):
        peer.read_frame()
    assert len(set(watched.answered_in)) == PIPELINED, "each has a turn of the loop for itself"


def test_what_a_client_asked_before_it_went_is_not_answered(
    braidlog: InProcessBraidlog, peer: Peer, watched: Watched
) -> None:
    def hang_up() -> None:
        for connection in list(braidlog.agent.connections):
            connection.close("", at_once=True)

    watched.on_third_answer = hang_up
    peer.send(ALL_TOPICS * PIPELINED)
    wait_until(lambda: watched.answered_in and not len(braidlog.agent.connections), what="it is gone")
    wait_until(lambda: braidlog.agent.connections.request_memory.used_bytes == 0, what="nothing is held for it")
    assert len(watched.answered_in) == 3


def test_small_requests_of_one_read_are_spread_over_turns(peer: Peer) -> None:
    peer.send(frame(header(18, 0)) * 2_000)
    for _ in range(2_000):
        assert peer.read_frame()[:6] == struct.pack(">ih", 7, 0)


@pytest.mark.parametrize("version", [0, 9, 13])
def test_a_topic_that_is_named_often_is_told_once(braidlog: InProcessBraidlog, peer: Peer, version: int) -> None:
    topic = create_topic(braidlog.bootstrap, 3)
    new = requests(METADATA, version)
    named = new("MetadataRequestTopic", name=topic, topic_id=None)
    missing = new("MetadataRequestTopic", name="no-such-topic", topic_id=None)
    request = new(
        "MetadataRequest",
        topics=(named, missing) * 100,
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    tags = b"\x00" if version >= 9 else b""
    peer.send(frame(header(METADATA, version) + tags + encode(request)))
    answer = peer.read_frame()
    assert answer.count(topic.encode()) == 1
    assert version == 0 or answer.count(b"no-such-topic") == 1
