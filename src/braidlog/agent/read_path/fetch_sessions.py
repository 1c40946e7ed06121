"""Fetch sessions: a consumer names its partitions once.

From then on both sides send only changes.

A session has an id and counts its fetches. After a lost answer the count, the session's epoch, is wrong, and the
consumer starts over. An agent need not give a session: without one, a consumer names everything each time. Pure, except
that ids are random.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from braidlog.runtime.entropy import Entropy
from braidlog.wire.fetch import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)

NO_SESSION = 0
OPENING_EPOCH = 0
FINAL_EPOCH = -1
_EPOCH_MAX = 2**31 - 1

SESSIONS_MAX = 1_000
PARTITIONS_MAX = 500_000
"""The limit for all sessions together."""
SESSION_PARTITIONS_MAX = 20_000
"""The limit for one session. Every fetch looks at all of them, however short it is."""
IDLE_S_MIN = 120.0
"""A session that was used within this time is not evicted for another one."""

FETCH_SESSION_ID_NOT_FOUND = 70
INVALID_FETCH_SESSION_EPOCH = 71
FETCH_SESSION_TOPIC_ID_ERROR = 106

_Key = tuple[str | bytes, int]
"""Topic name or id, and partition index."""


class SessionError(Exception):
    """The session cannot go on, so the consumer has to start over."""

    def __init__(self, error_code: int) -> None:
        super().__init__(f"fetch session error {error_code}")
        self.error_code = error_code


@dataclass(slots=True)
class _Place:
    """A partition in a session, and what the consumer was last told about it."""

    name: str
    topic_id: bytes
    wanted: FetchPartition
    high_watermark: int = -1
    log_start_offset: int = -1

    def has_news(self, fetched: FetchedPartition) -> bool:
        """Whether the answer says something new. It counts as told from now on."""
        news = (
            bool(fetched.records)
            or fetched.high_watermark != self.high_watermark
            or fetched.log_start_offset != self.log_start_offset
            or fetched.preferred_read_replica != -1
        )
        self.high_watermark, self.log_start_offset = fetched.high_watermark, fetched.log_start_offset
        if fetched.error_code:
            self.high_watermark = -1  # the end of the error is news, too
            return True
        return news


@dataclass(slots=True, eq=False)
class FetchSession:
    session_id: int
    by_id: bool
    epoch: int
    """The epoch that the next fetch must have."""
    used_s: float
    places: dict[_Key, _Place] = field(default_factory=dict)
    """Partitions in the order in which they are read. One that had records moves to the end: otherwise a few busy
    partitions could fill every response and starve the rest."""
    _topics: list[FetchTopic] | None = None

    @property
    def topics(self) -> list[FetchTopic]:
        """All partitions, in the form of a request that names them."""
        if self._topics is None:
            topics: list[FetchTopic] = []
            for place in self.places.values():
                if not topics or topics[-1].name != place.name or topics[-1].topic_id != place.topic_id:
                    topics.append(FetchTopic(place.name, place.topic_id, []))
                topics[-1].partitions.append(place.wanted)
            self._topics = topics
        return self._topics

    def update(self, request: FetchRequest) -> None:
        for name, topic_id, partitions in request.topics:
            for wanted in partitions:
                key = (topic_id if self.by_id else name, wanted.partition_index)
                place = self.places.get(key)
                if place is None:
                    self.places[key] = _Place(name, topic_id, wanted)
                else:
                    place.wanted = wanted
        for name, topic_id, indexes in request.forgotten_topics:
            for index in indexes:
                self.places.pop((topic_id if self.by_id else name, index), None)
        if request.topics or request.forgotten_topics:
            self._topics = None

    def tell(self, topics: Sequence[FetchedTopic], *, everything: bool) -> Sequence[FetchedTopic]:
        """The part of an answer that is new to the consumer, or all of it."""
        told: list[FetchedTopic] = []
        to_the_end: list[_Key] = []
        for name, topic_id, partitions in topics:
            news: list[FetchedPartition] = []
            for fetched in partitions:
                key = (topic_id if self.by_id else name, fetched.partition_index)
                place = self.places.get(key)
                # A fetch of the same session that overtook this one may have dropped it.
                if (place is not None and place.has_news(fetched)) or everything:
                    news.append(fetched)
                if fetched.records and place is not None:
                    to_the_end.append(key)
            if news:
                told.append(FetchedTopic(name, topic_id, news))
        if to_the_end and len(to_the_end) < len(self.places):
            for key in to_the_end:
                self.places[key] = self.places.pop(key)
            self._topics = None
        return topics if everything else told


class FetchSessions:
    def __init__(self, entropy: Entropy, *, sessions_max: int = SESSIONS_MAX, partitions_max: int = PARTITIONS_MAX):
        self._entropy = entropy
        self._sessions_max = sessions_max
        self._partitions_max = partitions_max
        self._sessions: dict[int, FetchSession] = {}
        """Sessions by id, the least recently used one first."""
        self._partition_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resume(self, request: FetchRequest, *, by_id: bool, now_s: float) -> FetchSession | None:
        """The session that a request continues; None if the request names everything.

        Raises `SessionError`.
        """
        if request.session_epoch in (OPENING_EPOCH, FINAL_EPOCH):
            if request.session_id != NO_SESSION:
                self._drop(request.session_id)
            return None
        session = self._sessions.get(request.session_id)
        if session is None:
            raise SessionError(FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.session_epoch:
            raise SessionError(INVALID_FETCH_SESSION_EPOCH)
        if session.by_id is not by_id:
            raise SessionError(FETCH_SESSION_TOPIC_ID_ERROR)
        before = len(session.places)
        if _partition_count(request) > SESSION_PARTITIONS_MAX:
            self._drop(session.session_id)
            raise SessionError(FETCH_SESSION_ID_NOT_FOUND)
        session.update(request)
        self._partition_count += len(session.places) - before
        session.epoch = 1 if session.epoch == _EPOCH_MAX else session.epoch + 1
        session.used_s = now_s
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        count = len(session.places)
        if not count or count > SESSION_PARTITIONS_MAX or self._partition_count > self._partitions_max:
            self._drop(session.session_id)
        return session

    def open(self, request: FetchRequest, *, by_id: bool, now_s: float) -> FetchSession | None:
        """Open a session with the request's partitions.

        Returns None if there is no room for one.
        """
        if _partition_count(request) > SESSION_PARTITIONS_MAX:
            return None
        session = FetchSession(NO_SESSION, by_id, 1, now_s)
        session.update(request._replace(forgotten_topics=[]))
        if not session.places or not self._make_room(len(session.places), now_s):
            return None
        while session.session_id == NO_SESSION or session.session_id in self._sessions:
            session.session_id = 1 + self._entropy.below(2**31 - 1)
        self._sessions[session.session_id] = session
        self._partition_count += len(session.places)
        return session

    def is_open(self, session: FetchSession) -> bool:
        return self._sessions.get(session.session_id) is session

    def _make_room(self, partition_count: int, now_s: float) -> bool:
        while (
            len(self._sessions) >= self._sessions_max or self._partition_count + partition_count > self._partitions_max
        ):
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_s - oldest.used_s < IDLE_S_MIN:
                return False
            self._drop(oldest.session_id)
            self.evictions += 1
        return True

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session.places)


def _partition_count(request: FetchRequest) -> int:
    return sum([len(topic.partitions) for topic in request.topics])


def answered(
    sessions: FetchSessions, session: FetchSession | None, response: FetchResponse, *, everything: bool
) -> FetchResponse:
    """The response as the consumer of a session gets it."""
    if session is None:
        return response
    session_id = session.session_id if sessions.is_open(session) else NO_SESSION
    return response._replace(topics=session.tell(response.topics, everything=everything), session_id=session_id)
