"""Nothing overtakes journaled records when a partition goes over to the classic path."""

import pytest

from braidlog.objects.layout import BatchEntry
from braidlog.records.batch import TRANSACTIONAL_BIT
from braidlog.writing.journal.unsequenced import Partition, Unsequenced
from braidlog.writing.request import WriteRequest
from braidlog.writing.routing import Routing

TOPIC, OTHER = b"a" * 16, b"b" * 16


class Stage:
    def __init__(self) -> None:
        self.taken: list[WriteRequest] = []

    def submit(self, request: WriteRequest) -> None:
        self.taken.append(request)


class Paths:
    """Both paths, of which the journal does what the test says."""

    def __init__(self) -> None:
        self.unsequenced = Unsequenced(
            self, on_empty=lambda partition: self.routing.release(partition), on_left=self._leave
        )
        self.left: list[list[Partition]] = []
        self.classic, self.journal = Stage(), Stage()
        self.journals = True
        self.routing = Routing(self.classic, self, lambda request: self.journals, self.unsequenced)
        self.done: list[int] = []

    def submit(self, request: WriteRequest) -> None:
        """The journaled path."""
        self.unsequenced.add((request.topic_id, request.partition))
        request.way_back = self.unsequenced.answered
        self.journal.submit(request)

    def answered(self, request: WriteRequest) -> None:
        request.on_done(request)

    def _leave(self, partitions: list[Partition]) -> None:
        self.left.append(partitions)
        self.journals = True

    def write(self, topic_id: bytes = TOPIC, partition: int = 0, attributes: int = 0) -> WriteRequest:
        entry = BatchEntry(100, 1, attributes, 0, 7, 0, 0)
        request = WriteRequest(topic_id, partition, b"", entry, 0, -1, self._note)
        self.routing.submit(request)
        return request

    def _note(self, request: WriteRequest) -> None:
        self.done.append(request.error_code)


@pytest.fixture
def paths() -> Paths:
    return Paths()


def acknowledge(*requests: WriteRequest) -> None:
    for request in requests:
        request.way_back(request)


def test_a_partition_waits_for_what_it_has_in_the_journal(paths: Paths) -> None:
    first, second = paths.write(), paths.write()
    paths.journals = False
    waiting = [paths.write(), paths.write()]
    elsewhere = paths.write(partition=1)
    assert paths.classic.taken == [elsewhere]
    assert paths.routing.waiting_count == 2
    acknowledge(first, second)  # in the journal, and not yet sequenced
    assert paths.routing.waiting_count == 2
    paths.unsequenced.sequenced({(TOPIC, 0): 2})
    assert paths.classic.taken == [elsewhere, *waiting]
    assert paths.routing.waiting_count == 0
    assert len(paths.unsequenced) == 0
    later = paths.write()
    assert paths.classic.taken[-1] is later


def test_what_is_not_written_after_all_is_not_waited_for(paths: Paths) -> None:
    first = paths.write()
    paths.journals = False
    waiting = paths.write()
    first.fail(19, "no store")
    assert paths.done == [19]
    assert paths.classic.taken == [waiting]


def test_what_is_left_to_be_replayed_keeps_the_partition_in_the_journal(paths: Paths) -> None:
    first = paths.write()
    paths.journals = False
    waiting = paths.write()
    acknowledge(first)
    paths.unsequenced.left({(TOPIC, 0): 1})
    assert paths.left == [[(TOPIC, 0)]]
    assert paths.classic.taken == []
    assert paths.journal.taken == [first, waiting]


def test_those_that_waited_go_first_where_journaling_goes_on(paths: Paths) -> None:
    first = paths.write()
    paths.journals = False
    waiting = paths.write()
    paths.journals = True
    last = paths.write()
    assert paths.journal.taken == [first, waiting, last]


def test_transactions_wait_for_nobody(paths: Paths) -> None:
    paths.write()
    paths.journals = False
    transactional = paths.write(attributes=TRANSACTIONAL_BIT)
    assert paths.classic.taken == [transactional]


def test_partitions_of_different_topics_are_different(paths: Paths) -> None:
    paths.write(TOPIC, 0)
    paths.journals = False
    assert paths.write(OTHER, 0) is paths.classic.taken[0]
