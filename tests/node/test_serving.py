"""A Braidlog inside another program."""

from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

import braidlog
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.settings import load_settings

ANYWHERE = {"listen": "127.0.0.1:0", "control_listen": "127.0.0.1:0", "metrics_listen": "off"}


async def values(bootstrap: str, topic: str, count: int) -> list[bytes | None]:
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return [(await consumer.getone()).value for _ in range(count)]
    finally:
        await consumer.stop()


async def test_a_program_serves_a_log_and_finds_it_again(tmp_path: Path) -> None:
    given = {"store_url": f"file://{tmp_path}/store", "metadata_url": f"sqlite://{tmp_path}/meta.db", **ANYWHERE}
    async with braidlog.serve(**given) as log:
        async with AIOKafkaProducer(bootstrap_servers=str(log.kafka)) as producer:
            await producer.send_and_wait("t", b"one")
        assert await values(str(log.kafka), "t", 1) == [b"one"]
    async with braidlog.serve(load_settings(given)) as log:
        assert await values(str(log.kafka), "t", 1) == [b"one"]


async def test_a_setting_that_cannot_be_used_is_told_before_anything_starts(tmp_path: Path) -> None:
    for wrong in ({"store": "file:///x"}, {"store_url": f"file://{tmp_path}/store", "request_timeout_ms": "soon"}):
        with pytest.raises(InvalidSetting):
            async with braidlog.serve(**wrong):
                pass
    assert not list(tmp_path.iterdir())


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'server'"):
        _ = braidlog.server  # type: ignore[attr-defined]
