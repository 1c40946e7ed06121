"""The service answers the same, embedded and behind RPC."""

import pytest
from tests.control.driver import batch, create_topic, make_object

from braidlog.control.interface import (
    CommitObject,
    ControlPlane,
    FeedRequest,
    ListGroups,
    SnapshotRequest,
)
from braidlog.objects.format import CorruptObject
from braidlog.runtime.errors import DeadlineExceeded


async def test_a_deadline_holds(control: ControlPlane) -> None:
    position = (await control.snapshot(SnapshotRequest())).position
    with pytest.raises(DeadlineExceeded):
        await control.read_feed(FeedRequest(position, 60_000), timeout_s=0.01)


async def test_garbage_is_refused_with_a_typed_error(control: ControlPlane) -> None:
    topic = await create_topic(control)
    good = make_object([(topic.topic_id, 0, [batch()])])
    with pytest.raises(CorruptObject):
        await control.commit_object(CommitObject(good.key, good.size, b"\x00"))
    with pytest.raises(CorruptObject):
        await control.commit_object(CommitObject(good.key, 10, good.footer))
    other = make_object([(topic.topic_id, 0, [batch()])], write_epoch=2)
    with pytest.raises(CorruptObject):
        await control.commit_object(CommitObject(other.key, good.size, good.footer))


async def test_groups_are_served(control: ControlPlane) -> None:
    assert (await control.list_groups(ListGroups())).groups == []
