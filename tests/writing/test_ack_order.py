"""Results of an idempotent producer's batches are passed back in order."""

import pytest
from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.objects.layout import SEQUENCE_END, BatchEntry
from braidlog.writing.ack_order import FAILURE_S, FAILURES_MAX, AckOrder
from braidlog.writing.request import WriteRequest

FAILED = int(ErrorCode.not_enough_replicas_after_append)


class Path:
    """The test decides what becomes of each request."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.clock = FakeClock()
        self.stage = AckOrder(self, self.clock)

    def answered(self, request: WriteRequest) -> None:
        """Stands behind the stage on the way back."""
        request.on_done(request)

    def write(self, sequence: int, *, producer_id: int = 7, epoch: int = 0, partition: int = 0) -> WriteRequest:
        entry = BatchEntry(10, 1, 0, 5, producer_id, epoch, sequence)
        request = WriteRequest(b"t" * 16, partition, b"x" * 10, entry, 5, -1, self.tell)
        if producer_id >= 0:
            self.stage.expect(request)
        request.way_back = self.stage.answered
        return request

    def tell(self, request: WriteRequest) -> None:
        self.told.append((request.entry.base_sequence, request.error_code))


def stored(request: WriteRequest) -> None:
    request.way_back(request)


def fail(request: WriteRequest) -> None:
    request.fail(FAILED, "no")


def test_a_later_file_that_is_done_first_waits() -> None:
    path = Path()
    first, second, third = path.write(0), path.write(1), path.write(2)
    stored(third)
    stored(second)
    assert path.told == []
    stored(first)
    assert path.told == [(0, 0), (1, 0), (2, 0)]


def test_nothing_is_acknowledged_behind_a_failure_until_it_was_sent_again() -> None:
    path = Path()
    first, second = path.write(0), path.write(1)
    stored(second)
    fail(first)
    stored(path.write(2))  # was on its way before the producer could know
    assert path.told == [(0, FAILED), (1, FAILED), (2, FAILED)]
    for sequence in range(4):
        stored(path.write(sequence))
    assert path.told[3:] == [(0, 0), (1, 0), (2, 0), (3, 0)]


def test_a_failure_that_repeats() -> None:
    path = Path()
    fail(path.write(0))
    fail(path.write(1))
    fail(path.write(0))
    stored(path.write(1))
    stored(path.write(0))
    fail(path.write(1))
    stored(path.write(2))
    stored(path.write(1))
    stored(path.write(2))
    assert [code for _, code in path.told] == [FAILED, FAILED, FAILED, FAILED, 0, FAILED, FAILED, 0, 0]


def test_what_lies_before_the_failure_is_acknowledged() -> None:
    path = Path()
    fail(path.write(10))
    stored(path.write(9))
    stored(path.write(11))
    assert path.told == [(10, FAILED), (9, 0), (11, FAILED)]


def test_numbers_begin_again_at_0() -> None:
    path = Path()
    fail(path.write(SEQUENCE_END - 1))
    stored(path.write(0))
    stored(path.write(SEQUENCE_END - 1))
    stored(path.write(0))
    assert [code for _, code in path.told] == [FAILED, FAILED, 0, 0]


@pytest.mark.parametrize("other", [{"producer_id": 8}, {"epoch": 1}, {"partition": 1}])
def test_others_do_not_wait(other: dict[str, int]) -> None:
    path = Path()
    path.write(0)
    fail(path.write(0, **other))
    stored(path.write(0, producer_id=9))
    stored(path.write(5, producer_id=-1))
    assert path.told == [(0, FAILED), (0, 0), (5, 0)]


def test_a_producer_without_numbers_hears_at_once() -> None:
    path = Path()
    path.write(-1, producer_id=-1)
    second = path.write(-1, producer_id=-1)
    stored(second)
    assert path.told == [(-1, 0)]


def test_a_failure_is_not_waited_for_for_ever() -> None:
    path = Path()
    fail(path.write(0))
    path.clock.advance(FAILURE_S)
    stored(path.write(1))
    assert path.told == [(0, FAILED), (1, 0)]


def test_it_remembers_only_so_many() -> None:
    path = Path()
    for producer_id in range(FAILURES_MAX + 1):
        fail(path.write(0, producer_id=producer_id))
    stored(path.write(1, producer_id=0))
    stored(path.write(1, producer_id=1))
    assert path.told[-2:] == [(1, 0), (1, FAILED)]


def test_what_was_written_long_ago_is_no_failure() -> None:
    path = Path()
    first, second = path.write(0), path.write(1)
    first.fail(int(ErrorCode.duplicate_sequence_number), "known")
    stored(second)
    assert path.told == [(0, int(ErrorCode.duplicate_sequence_number)), (1, 0)]
