"""Which work on batches is done on the spot, which in threads, and where it ends."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Executor

import pytest
from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.agent.apis.records import batch_work
from braidlog.agent.apis.records.batch_work import LIGHT_BYTES_MAX, LIGHT_RECORDS_MAX, ORDINARY_BYTES_MAX, BatchWork
from braidlog.records import record_checks
from braidlog.records.batch import read_header
from braidlog.records.codec import Codec
from braidlog.records.errors import InvalidBatch
from braidlog.records.preparation import LogRules
from braidlog.records.record import Record, encode_batch
from braidlog.records.record_checks import Times
from braidlog.runtime.turns import TURN_S, Turns

MIB = 1024 * 1024
EXPANDED_BYTES_MAX = 32 * MIB
RULES = LogRules(100 * MIB)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the compiled check was not loaded yet."""
    monkeypatch.setattr(record_checks._Loaded, "compiled", None)


@pytest.fixture
async def work(clock: FakeClock) -> AsyncIterator[BatchWork]:
    made = BatchWork(Turns(clock), expanded_bytes_max=EXPANDED_BYTES_MAX)
    yield made
    await made.close()


@pytest.fixture
def lanes(work: BatchWork, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where work went."""
    names = {id(work._ordinary): "ordinary", id(work._wide): "wide"}
    used: list[str] = []
    run = asyncio.BaseEventLoop.run_in_executor

    def noted(self: asyncio.BaseEventLoop, executor: Executor, *arguments: object) -> object:
        used.append(names[id(executor)])
        return run(self, executor, *arguments)

    monkeypatch.setattr(asyncio.BaseEventLoop, "run_in_executor", noted)
    return used


def batch(value_bytes: int, codec: Codec = Codec.ZSTD, count: int = 1) -> memoryview:
    return memoryview(encode_batch([Record(at, 1, b"k", bytes(value_bytes)) for at in range(count)], codec=codec))


async def test_small_batches_are_prepared_on_the_spot(work: BatchWork) -> None:
    for codec in Codec:
        data = batch(1_000, codec)
        assert work.prepare_light(data, read_header(data), RULES, Times()) == (data, read_header(data))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (batch(LIGHT_BYTES_MAX), ["ordinary"]),
        (batch(0, Codec.NONE, LIGHT_RECORDS_MAX + 1), ["ordinary"]),
        (batch(0, Codec.ZSTD, LIGHT_RECORDS_MAX + 1), ["ordinary"]),
        (batch(ORDINARY_BYTES_MAX), ["ordinary", "wide"]),
    ],
)
async def test_what_is_larger_is_prepared_in_threads(
    work: BatchWork, lanes: list[str], data: memoryview, expected: list[str]
) -> None:
    assert work.prepare_light(data, read_header(data), RULES, Times()) is None
    assert await work.prepare(data, read_header(data), RULES, Times()) == (data, read_header(data))
    assert lanes == expected


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
async def test_a_batch_that_expands_too_far_is_told_which_setting_it_met(work: BatchWork, codec: Codec) -> None:
    data = batch(EXPANDED_BYTES_MAX, codec)
    assert work.prepare_light(data, read_header(data), RULES, Times()) is None
    with pytest.raises(InvalidBatch, match=r"more than 33554432 bytes.*batch_expanded_bytes_max") as caught:
        await work.prepare(data, read_header(data), RULES, Times())
    assert caught.value.error_code is ErrorCode.message_too_large


async def test_many_small_batches_share_the_time_of_one_turn(work: BatchWork, clock: FakeClock) -> None:
    data = batch(10, count=100)
    assert work.prepare_light(data, read_header(data), RULES, Times()) is not None
    clock.advance(TURN_S)
    assert work.prepare_light(data, read_header(data), RULES, Times()) is None
    assert await work.prepare(data, read_header(data), RULES, Times()) == (data, read_header(data))
    assert work.prepare_light(data, read_header(data), RULES, Times()) is not None, "another turn"


async def test_what_is_not_compressed_does_not_expand(clock: FakeClock) -> None:
    work = BatchWork(Turns(clock), expanded_bytes_max=1 * MIB)
    data = batch(2 * MIB, Codec.NONE)
    assert work.prepare_light(data, read_header(data), RULES, Times()) is not None
    assert await work.prepare(data, read_header(data), RULES, Times())
    await work.close()


async def test_the_compiled_check_is_loaded_once_it_is_worth_it(
    work: BatchWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bool] = []
    monkeypatch.setattr(batch_work, "load_compiled", lambda: bool(loaded.append(True)))
    monkeypatch.setattr(batch_work, "COMPILED_AFTER_RECORDS", 25)
    data = batch(10, Codec.NONE, 10)
    for _ in range(2):
        work.prepare_light(data, read_header(data), RULES, Times())
    assert work._loading is None
    for _ in range(5):
        work.prepare_light(data, read_header(data), RULES, Times())
    assert work._loading is not None
    await work._loading
    assert loaded == [True]
