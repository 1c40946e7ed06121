"""A producer hears the truth about batches behind one that failed."""

from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.objects.layout import SEQUENCE_END, BatchEntry
from braidlog.writing.follow_on_failures import FAILURE_S, FAILURES_MAX, FollowOnFailures
from braidlog.writing.request import WriteRequest

OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number


class Path:
    """The test decides what becomes of each request."""

    def __init__(self) -> None:
        self.told: list[tuple[int, int]] = []
        self.clock = FakeClock()
        self.stage = FollowOnFailures(self.clock)

    def write(self, sequence: int, *, producer_id: int = 7, epoch: int = 0, partition: int = 0) -> WriteRequest:
        entry = BatchEntry(10, 1, 0, 5, producer_id, epoch, sequence)
        request = WriteRequest(b"t" * 16, partition, b"x" * 10, entry, 5, -1, self.tell)
        if producer_id >= 0:
            request.way_back = self.stage.answered
        return request

    def tell(self, request: WriteRequest) -> None:
        self.told.append((request.entry.base_sequence, request.error_code))


def test_batches_behind_one_that_failed_are_to_be_sent_again() -> None:
    path = Path()
    first, second = path.write(0), path.write(1)
    first.fail(ErrorCode.not_enough_replicas_after_append, "gone")
    second.fail(OUT_OF_ORDER, "no")
    path.write(2).fail(OUT_OF_ORDER, "no")  # was on its way before the producer could know
    again = path.write(0)
    again.fail(ErrorCode.not_enough_replicas, "still gone")
    path.write(1).fail(OUT_OF_ORDER, "no")
    assert path.told == [
        (0, ErrorCode.not_enough_replicas_after_append),
        (1, ErrorCode.not_enough_replicas),
        (2, ErrorCode.not_enough_replicas),
        (0, ErrorCode.not_enough_replicas),
        (1, ErrorCode.not_enough_replicas),
    ]


def test_a_gap_that_nobody_here_has_made_is_told_as_it_is() -> None:
    path = Path()
    path.write(5).fail(OUT_OF_ORDER, "no")
    path.write(10, partition=1).fail(ErrorCode.not_enough_replicas, "gone")
    path.write(11).fail(OUT_OF_ORDER, "no")
    path.write(11, producer_id=8, partition=1).fail(OUT_OF_ORDER, "no")
    path.write(11, epoch=1, partition=1).fail(OUT_OF_ORDER, "no")
    path.write(9, partition=1).fail(OUT_OF_ORDER, "no")  # not behind it, but before
    assert [code for _, code in path.told if code == OUT_OF_ORDER] == [OUT_OF_ORDER] * 5


def test_what_failed_is_forgiven_when_it_is_written() -> None:
    path = Path()
    before, failed = path.write(0), path.write(1)
    failed.fail(ErrorCode.kafka_storage_error, "full")
    before.way_back(before)
    path.write(2).fail(OUT_OF_ORDER, "no")
    assert path.told[-1] == (2, ErrorCode.not_enough_replicas)
    again = path.write(1)
    again.way_back(again)
    assert not path.stage._failures
    path.write(9).fail(OUT_OF_ORDER, "no")
    assert path.told[-1] == (9, OUT_OF_ORDER)


def test_a_producer_that_does_not_send_again_is_told_in_the_end() -> None:
    path = Path()
    path.write(SEQUENCE_END - 1).fail(ErrorCode.not_enough_replicas, "gone")
    path.write(0).fail(OUT_OF_ORDER, "no")
    path.clock.advance(FAILURE_S)
    path.write(0).fail(OUT_OF_ORDER, "no")
    assert [code for _, code in path.told[1:]] == [ErrorCode.not_enough_replicas, OUT_OF_ORDER]


def test_what_is_remembered_has_a_limit() -> None:
    path = Path()
    for number in range(FAILURES_MAX + 10):
        path.write(0, producer_id=number).fail(ErrorCode.not_enough_replicas, "gone")
    assert len(path.stage._failures) == FAILURES_MAX
