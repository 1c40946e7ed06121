"""Fetch sessions: what has to be told, in which order partitions are read, wrong epochs, and limits."""

import pytest

from braidlog.agent.read_path import fetch_sessions
from braidlog.agent.read_path.fetch_sessions import (
    FETCH_SESSION_ID_NOT_FOUND,
    FETCH_SESSION_TOPIC_ID_ERROR,
    IDLE_S_MIN,
    INVALID_FETCH_SESSION_EPOCH,
    FetchSession,
    FetchSessions,
    SessionError,
    answered,
)
from braidlog.runtime.entropy import SeededEntropy
from braidlog.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

ID = b"t" * 16


def wanted(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(index, offset, 1000, -1, -1, -1)


def request(
    session_id: int = 0,
    epoch: int = 0,
    partitions: list[FetchPartition] | None = None,
    forgotten: list[int] | None = None,
) -> FetchRequest:
    topics = [FetchTopic("", ID, partitions)] if partitions else []
    gone = [ForgottenTopic("", ID, forgotten)] if forgotten else []
    return FetchRequest(0, 1, 1000, 0, session_id, epoch, topics, gone, "", -1, -1, None)


def response(*partitions: FetchedPartition) -> FetchResponse:
    return FetchResponse([FetchedTopic("", ID, list(partitions))] if partitions else [])


def fetched(
    index: int, high_watermark: int = 0, records: bytes = b"", error: int = 0, start: int = 0
) -> FetchedPartition:
    return FetchedPartition(index, error, high_watermark, high_watermark, start, records=[records] if records else [])


class Table:
    def __init__(self, **limits: int) -> None:
        self.sessions = FetchSessions(SeededEntropy(1), **limits)
        self.now_s = 0.0

    def open(self, *indexes: int) -> FetchSession:
        session = self.try_open(*indexes)
        assert session is not None
        return session

    def try_open(self, *indexes: int) -> FetchSession | None:
        opening = request(partitions=[wanted(index) for index in indexes])
        assert self.sessions.resume(opening, by_id=True, now_s=self.now_s) is None
        return self.sessions.open(opening, by_id=True, now_s=self.now_s)

    def resume(self, session_id: int, epoch: int, *, by_id: bool = True, **parts: object) -> FetchSession:
        again = request(session_id, epoch, **parts)  # type: ignore[arg-type]
        found = self.sessions.resume(again, by_id=by_id, now_s=self.now_s)
        assert found is not None
        return found

    def tell(self, session: FetchSession, *partitions: FetchedPartition, everything: bool = False) -> list[int]:
        told = answered(self.sessions, session, response(*partitions), everything=everything)
        return [partition.partition_index for topic in told.topics for partition in topic.partitions]

    def refused(self, session_id: int, epoch: int, *, by_id: bool = True) -> int:
        with pytest.raises(SessionError) as refused:
            self.resume(session_id, epoch, by_id=by_id)
        return refused.value.error_code


def indexes_of(session: FetchSession) -> list[int]:
    return [partition.partition_index for topic in session.topics for partition in topic.partitions]


def test_the_first_answer_has_everything_and_later_ones_what_is_new() -> None:
    table = Table()
    session = table.open(0, 1, 2)
    assert table.tell(session, *(fetched(index) for index in range(3)), everything=True) == [0, 1, 2]
    again = table.resume(session.session_id, 1)
    assert again is session
    assert indexes_of(again) == [0, 1, 2]
    assert table.tell(session, *(fetched(index) for index in range(3))) == []
    table.resume(session.session_id, 2)
    assert table.tell(session, fetched(0, 1), fetched(1, records=b"x"), fetched(2, start=3)) == [0, 1, 2]
    table.resume(session.session_id, 3)
    assert table.tell(session, fetched(0, 1), fetched(2, start=3), fetched(1)) == []


def test_an_error_and_its_end_are_news() -> None:
    table = Table()
    session = table.open(0)
    table.tell(session, fetched(0, 5), everything=True)
    assert table.tell(session, fetched(0, -1, error=3, start=-1)) == [0]
    assert table.tell(session, fetched(0, -1, error=3, start=-1)) == [0]
    assert table.tell(session, fetched(0, 5)) == [0]
    assert table.tell(session, fetched(0, 5)) == []


def test_partitions_come_go_and_move_on() -> None:
    table = Table()
    session = table.open(0, 1)
    table.resume(session.session_id, 1, partitions=[wanted(1, 7), wanted(5)], forgotten=[0])
    assert session.topics == [FetchTopic("", ID, [wanted(1, 7), wanted(5)])]
    assert len(table.sessions) == 1


def test_whoever_had_records_is_read_last_the_next_time() -> None:
    table = Table()
    session = table.open(0, 1, 2)
    table.tell(session, fetched(0, 9, b"x"), fetched(1), fetched(2), everything=True)
    assert indexes_of(table.resume(session.session_id, 1)) == [1, 2, 0]


def test_wrong_numbers_are_refused() -> None:
    table = Table()
    session = table.open(0)
    number = session.session_id
    assert table.refused(number + 1, 1) == FETCH_SESSION_ID_NOT_FOUND
    assert table.refused(number, 2) == INVALID_FETCH_SESSION_EPOCH
    assert table.refused(number, 1, by_id=False) == FETCH_SESSION_TOPIC_ID_ERROR
    table.resume(number, 1)
    assert table.refused(number, 1) == INVALID_FETCH_SESSION_EPOCH
    session.epoch = 2**31 - 1
    table.resume(number, 2**31 - 1)
    assert session.epoch == 1
    # A request that names everything ends the session that it mentions.
    assert table.sessions.resume(request(number, -1, [wanted(0)]), by_id=True, now_s=0) is None
    assert table.refused(number, 1) == FETCH_SESSION_ID_NOT_FOUND


def test_a_session_without_partitions_ends() -> None:
    table = Table()
    session = table.open(0)
    table.resume(session.session_id, 1, forgotten=[0])
    assert answered(table.sessions, session, response(), everything=False).session_id == 0
    assert len(table.sessions) == 0


def test_there_are_only_so_many_and_idle_ones_make_room() -> None:
    table = Table(sessions_max=2)
    first, second = table.open(0), table.open(1)
    assert table.try_open(2) is None
    table.now_s = IDLE_S_MIN
    table.resume(first.session_id, 1)
    third = table.open(2)
    assert table.refused(second.session_id, 1) == FETCH_SESSION_ID_NOT_FOUND
    assert (len(table.sessions), table.sessions.evictions) == (2, 1)
    table.resume(first.session_id, 2)
    table.resume(third.session_id, 1)


def test_partitions_are_bounded_over_all_sessions() -> None:
    table = Table(partitions_max=4)
    session = table.open(0, 1, 2)
    assert table.try_open(0, 1) is None
    table.resume(session.session_id, 1, partitions=[wanted(index) for index in range(3, 6)])
    assert answered(table.sessions, session, response(), everything=False).session_id == 0
    assert table.open(0, 1, 2, 3)


def test_partitions_are_bounded_in_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "SESSION_PARTITIONS_MAX", 3)
    table = Table()
    assert table.try_open(0, 1, 2, 3) is None
    session = table.open(0, 1, 2)
    moved_on = request(session.session_id, 1, [wanted(index, 5) for index in range(3)])
    assert table.sessions.resume(moved_on, by_id=True, now_s=0.0) is session, "they are in it already"
    assert table.sessions.is_open(session)
    grown = request(session.session_id, 2, [wanted(3)])
    assert table.sessions.resume(grown, by_id=True, now_s=0.0) is session, "it is answered once more"
    assert not table.sessions.is_open(session)
