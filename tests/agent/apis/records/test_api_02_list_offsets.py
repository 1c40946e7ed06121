"""ListOffsets: which special timestamps are known from which version on, and what they mean where there is one tier."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from tests.agent.apis.api_caller import ApiCaller, part

from braidlog.agent.apis.records.api_02_list_offsets import VERSIONS
from braidlog.control.interface import (
    BoundsAnswer,
    BoundsRequest,
    CreateTopics,
    FindTimestamp,
    FoundExtents,
    NewTopic,
    PartitionBounds,
)

LIST_OFFSETS = 2
LOG_START, STABLE, LOG_END = 3, 7, 10
NOTHING = -1
HIGHEST = -1
"""What the control plane calls the highest timestamp."""
SECOND = i32Timedelta.parse(timedelta(seconds=1))

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -1, -2, -3, -4, -5, -6


class Trimmed:
    """A control plane that tells the same bounds of every log, none of which has a record to be found by its time."""

    def __init__(self, control: Any) -> None:
        self._control = control

    def __getattr__(self, name: str) -> Any:
        return getattr(self._control, name)

    async def current_bounds(self, request: BoundsRequest, *, timeout_s: float | None = None) -> BoundsAnswer:
        return BoundsAnswer([PartitionBounds(each, LOG_START, LOG_END, 100, STABLE) for each in request.partition_ids])

    async def find_timestamp(self, request: FindTimestamp, *, timeout_s: float | None = None) -> FoundExtents:
        assert request.timestamp_ms == HIGHEST, "what is special is not looked for as if it were a time"
        return await self._control.find_timestamp(request, timeout_s=timeout_s)


@pytest.fixture
async def log(agent: SimpleNamespace) -> None:
    await agent.control.create_topics(CreateTopics([NewTopic("log", 1)]))
    while "log" not in agent.view.topics_by_name:
        await agent.view.wait_catalog_change()
    agent.control = Trimmed(agent.control)


async def ask(
    call: ApiCaller, timestamp: int, version: int, *, topic: str = "log", isolation_level: int = 0
) -> tuple[ErrorCode, int]:
    """The error and the offset; timestamp and leader epoch must fit them."""
    partition = part("ListOffsetsPartition", partition_index=0, current_leader_epoch=-1, timestamp=timestamp)
    request = part(
        "ListOffsetsRequest",
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[part("ListOffsetsTopic", name=topic, partitions=[partition])],
        timeout=SECOND,
    )
    (answered,) = (await call(LIST_OFFSETS, request, version=version)).topics
    (found,) = answered.partitions
    assert found.timestamp == -1
    if version >= 4:
        assert found.leader_epoch == (0 if found.offset >= 0 else -1)
    return found.error_code, found.offset


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize(
    ("timestamp", "known_from", "offset"),
    [
        (LATEST, 1, LOG_END),
        (EARLIEST, 1, LOG_START),
        (MAX_TIMESTAMP, 7, NOTHING),
        (EARLIEST_LOCAL, 8, LOG_START),
        (LATEST_TIERED, 9, NOTHING),
        (EARLIEST_PENDING_UPLOAD, 11, NOTHING),
    ],
)
async def test_a_special_timestamp_is_known_from_one_version_on(
    call: ApiCaller, timestamp: int, known_from: int, offset: int
) -> None:
    unknown = (ErrorCode.unsupported_version, NOTHING)
    expected = {version: (ErrorCode.none, offset) if version >= known_from else unknown for version in VERSIONS}
    assert {version: await ask(call, timestamp, version) for version in VERSIONS} == expected


@pytest.mark.usefixtures("log")
@pytest.mark.parametrize("timestamp", [-7, -100, -(2**63)])
async def test_other_negative_timestamps_are_known_in_no_version(call: ApiCaller, timestamp: int) -> None:
    for version in VERSIONS:
        assert await ask(call, timestamp, version) == (ErrorCode.unsupported_version, NOTHING)
    assert await ask(call, timestamp, VERSIONS[-1], topic="nowhere") == (ErrorCode.unsupported_version, NOTHING)


@pytest.mark.usefixtures("log")
async def test_only_the_end_depends_on_what_is_decided(call: ApiCaller) -> None:
    for timestamp, offset in [(LATEST, STABLE), (EARLIEST, LOG_START), (EARLIEST_LOCAL, LOG_START)]:
        assert await ask(call, timestamp, VERSIONS[-1], isolation_level=1) == (ErrorCode.none, offset)


@pytest.mark.usefixtures("log")
async def test_a_partition_that_is_asked_for_repeatedly_is_refused(call: ApiCaller) -> None:
    partition = part("ListOffsetsPartition", partition_index=0, current_leader_epoch=-1, timestamp=LATEST)
    topic = part("ListOffsetsTopic", name="log", partitions=[partition, partition])
    request = part("ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=[topic], timeout=SECOND)
    (answered,) = (await call(LIST_OFFSETS, request)).topics
    assert [each.error_code for each in answered.partitions] == [ErrorCode.invalid_request] * 2
