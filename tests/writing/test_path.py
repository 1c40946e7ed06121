"""The way back of every kind of request is the one that `writing.path` draws."""

import asyncio
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.control.interface import BatchVerdict, CommitObject, ControlPlane, ExtentVerdict, ObjectVerdict
from braidlog.cost.prices import PRICES
from braidlog.cost.topics import TopicMeter
from braidlog.objects.layout import BatchEntry
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.settings import AgentSettings
from braidlog.writing.ack_order import AckOrder
from braidlog.writing.follow_on_failures import FollowOnFailures
from braidlog.writing.journal.unsequenced import Unsequenced
from braidlog.writing.packing import Writer
from braidlog.writing.path import Components, WritePath
from braidlog.writing.request import WriteRequest

CLASSIC, LIGHTNING = b"c" * 16, b"l" * 16
RESULT_STAGES = (Unsequenced, AckOrder, FollowOnFailures)


class Control:
    """Only `commit_object`: everything gets offset 40."""

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        return ObjectVerdict(0, [ExtentVerdict(0, [BatchVerdict(0, 40)])])


class World:
    """A whole write path. Also its topics, and the outage that there is not."""

    journals_all = False

    def __init__(self, ripcord: str) -> None:
        clock = FakeClock()
        store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
        self.path = WritePath(
            Components(cast(ControlPlane, Control()), store, clock, SeededEntropy(1)),
            AgentSettings(store_url="memory://", ripcord=cast(Any, ripcord)),
            Writer("ab" * 8, "z", lambda: 7),
            self,
            self,
            TopicMeter(next(iter(PRICES.values())), started_s=0.0),
            lambda key, data: None,
            None,
        )

    def await_replay(self) -> None:
        raise AssertionError("nothing is left to a replay")

    def is_journaled(self, topic_id: bytes) -> bool:
        return topic_id == LIGHTNING

    def topic_name(self, topic_id: bytes) -> str:
        return topic_id.hex()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The result stages that see a result, in order."""
    names: list[str] = []
    for stage in RESULT_STAGES:
        original = stage.answered

        def answered(self: Any, request: WriteRequest, original: Any = original, name: str = stage.__name__) -> None:
            names.append(name)
            original(self, request)

        monkeypatch.setattr(stage, "answered", answered)
    return names


def request(topic_id: bytes, producer_id: int, done: list[WriteRequest]) -> WriteRequest:
    entry = BatchEntry(10, 1, 0, 5, producer_id, 0, 0)
    return WriteRequest(topic_id, 0, b"x" * 10, entry, 5, -1, done.append)


WAYS_BACK = {
    ("off", CLASSIC, -1): [],
    ("off", CLASSIC, 7): ["FollowOnFailures"],
    ("off", LIGHTNING, -1): ["Unsequenced", "AckOrder"],
    ("off", LIGHTNING, 7): ["Unsequenced", "AckOrder", "FollowOnFailures"],
    ("auto", CLASSIC, -1): [],
    ("auto", CLASSIC, 7): ["AckOrder", "FollowOnFailures"],
    ("auto", LIGHTNING, -1): ["Unsequenced", "AckOrder"],
    ("auto", LIGHTNING, 7): ["Unsequenced", "AckOrder", "FollowOnFailures"],
}


@pytest.mark.parametrize(("ripcord", "topic_id", "producer_id"), WAYS_BACK)
async def test_results_pass_the_stages_of_their_kind(
    seen: list[str], ripcord: str, topic_id: bytes, producer_id: int
) -> None:
    done: list[WriteRequest] = []
    world = World(ripcord)
    world.path.submit(request(topic_id, producer_id, done))
    await asyncio.sleep(0)
    await world.path.flush()
    await world.path.finish(10.0)
    [answered] = done
    assert (answered.error_code, answered.base_offset) == (0, 40 if topic_id == CLASSIC else 0)
    assert seen == WAYS_BACK[ripcord, topic_id, producer_id]


@pytest.mark.parametrize(("ripcord", "topic_id", "producer_id"), WAYS_BACK)
def test_errors_take_the_same_way(seen: list[str], ripcord: str, topic_id: bytes, producer_id: int) -> None:
    done: list[WriteRequest] = []
    world = World(ripcord)
    failed = request(topic_id, producer_id, done)

    async def fail() -> None:
        world.path.submit(failed)
        failed.fail(ErrorCode.not_enough_replicas, "no")

    asyncio.run(fail())
    assert done == [failed]
    assert seen == WAYS_BACK[ripcord, topic_id, producer_id]
