"""No request is so long that it is handled in one step of the loop.

What is counted is calls of Python functions in the agent's own code, between one turn of the loop and the next. That
is the same on every machine. Everything is a tenth of what it is in earnest: slices, and what counts as large.
"""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from kio.index import load_request_schema
from tests.kafka.hostile import exchange
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.long_requests import LongRequest, array_paths
from tests.kafka.raw import Peer
from tests.kafka.topics import create_topic

import braidlog
from braidlog.agent.apis import dispatch
from braidlog.agent.apis.dispatch import API_VERSIONS
from braidlog.agent.apis.records import api_00_produce, api_01_fetch, fetch_reading
from braidlog.runtime import turns
from braidlog.wire import messages

ELEMENTS = 1_000
CALLS_PER_TURN_MAX = 1_500
"""A slice of 20 elements makes a few hundred. One quick call for each element does no harm: 100,000 take 20 ms."""
PARTITIONS = 50

SOURCE = str(Path(braidlog.__file__).parent)
OWN_CODE = tuple(f"{SOURCE}/{room}/" for room in ("agent", "wire"))


class CallMeter:
    """Counts the calls that the loop's thread makes in each turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls = 0
        self._is_running = True
        self.calls_max = 0
        loop.call_soon_threadsafe(self._start)

    def stop(self) -> None:
        self._is_running = False

    def _start(self) -> None:
        sys.setprofile(self._count)
        self._turn()

    def _turn(self) -> None:
        self.calls_max = max(self.calls_max, self._calls)
        self._calls = 0
        if self._is_running:
            self._loop.call_soon(self._turn)
        else:
            sys.setprofile(None)

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OWN_CODE):
            self._calls += 1


@pytest.fixture(scope="module")
def braidlog_in_slices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InProcessBraidlog]:
    with pytest.MonkeyPatch.context() as patch, InProcessBraidlog(tmp_path_factory.mktemp("long")) as running:
        patch.setattr(turns, "TURN_S", 0.0)
        patch.setattr(turns, "SLICE_LENGTH", 20)
        patch.setattr(dispatch, "LARGE_REQUEST_BYTES", 1_600)
        patch.setattr(messages, "LONG_ELEMENTS", 50)
        patch.setattr(api_01_fetch, "LARGE_REQUEST_BYTES", 1_600)
        for module in (api_00_produce, api_01_fetch):
            patch.setattr(module, "LONG_PARTITIONS", 40)
        for module in (api_00_produce, api_01_fetch, fetch_reading):
            patch.setattr(module, "SLICE_LENGTH", 20)
        yield running


@pytest.fixture(scope="module")
def topic(braidlog_in_slices: InProcessBraidlog) -> str:
    return create_topic(braidlog_in_slices.bootstrap, PARTITIONS)


APIS = [
    (key, versions[-1])
    for key, versions in sorted(API_VERSIONS.items())
    if any(array_paths(load_request_schema(key, versions[-1])))
]


@pytest.mark.parametrize(("key", "version"), APIS)
def test_a_long_request_is_handled_in_slices(
    braidlog_in_slices: InProcessBraidlog, topic: str, key: int, version: int
) -> None:
    braidlog = braidlog_in_slices
    topic_id = braidlog.agent.view.topics_by_name[topic].info.topic_id
    for path in array_paths(load_request_schema(key, version)):
        request = LongRequest(key, version, path, ELEMENTS, topic=topic, topic_id=topic_id).frame()
        peer = Peer(braidlog.bootstrap)
        meter = CallMeter(braidlog._loop)
        try:
            exchange(peer, request)
        finally:
            meter.stop()
            peer.socket.close()
        assert meter.calls_max < CALLS_PER_TURN_MAX, f"{meter.calls_max} calls in one turn for {path}"
