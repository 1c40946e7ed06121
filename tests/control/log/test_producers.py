"""Idempotent producers: their identities, and when they are forgotten."""

from tests.control.driver import Plane, batch, commit, create_topic, new_producer

from braidlog.control.interface import (
    ControlPlane,
    InitProducerId,
)


async def test_producers_are_identified_and_fenced(control: ControlPlane) -> None:
    first, second = await new_producer(control), await new_producer(control)
    assert first != second
    bumped = await control.init_producer_id(InitProducerId(None, 0, first, 0))
    assert (bumped.error_code, bumped.producer_id, bumped.producer_epoch) == (0, first, 1)
    assert (await control.init_producer_id(InitProducerId(None, 0, first, 0))).error_code == 47
    exhausted = await control.init_producer_id(InitProducerId(None, 0, first, 32_767))
    assert exhausted.producer_id not in (first, second)
    assert exhausted.producer_epoch == 0
    transactional = await control.init_producer_id(InitProducerId("tx", 1000))
    assert transactional.error_code == 0
    assert transactional.producer_id not in (first, second, exhausted.producer_id)


async def test_a_silent_producer_is_forgotten(plane: Plane) -> None:
    topic = await create_topic(plane.service, "t", 2)
    pid = await new_producer(plane.service)
    assert await commit(plane.service, topic, [batch(5, pid, 0, 0)]) == [(0, 0, False)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 9)], partition=1) == [(45, -1, False)]
    plane.clock.advance(24 * 3600 + 1)
    # Not known any more, so it may go on anywhere, in every partition.
    assert await commit(plane.service, topic, [batch(1, pid, 0, 9)], partition=1) == [(0, 0, False)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 77)]) == [(0, 5, False)]
    assert await commit(plane.service, topic, [batch(1, pid, 0, 79)]) == [(45, -1, False)]
    plane.clock.advance(12 * 3600)
    await commit(plane.service, topic, [batch(1, pid, 0, 78)])
    plane.clock.advance(13 * 3600)
    assert await plane.service.parts.producers.expire_once() == 0
    plane.clock.advance(12 * 3600)
    assert await plane.service.parts.producers.expire_once() == 1
    assert await plane.metadata.read(lambda tx: tx.query("SELECT * FROM producer_partitions")) == []
