"""Reads the partitions of a fetch request, within the room that its response has."""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from braidlog.agent.cluster.view import ClusterView, TopicView
from braidlog.agent.read_path.partition_answers import (
    DENIED,
    Denied,
    PartitionAnswers,
    PartitionRead,
    records_bytes,
    without_records,
)
from braidlog.agent.read_path.response_room import ResponseRoom
from braidlog.runtime.turns import SLICE_LENGTH, Turns
from braidlog.security.acls import READ
from braidlog.security.rights import Rights
from braidlog.wire.fetch import FetchedPartition, FetchedTopic, FetchPartition, FetchResponse, FetchTopic

Begun: TypeAlias = list[FetchedPartition | PartitionRead]
Wanted: TypeAlias = Iterable[tuple[TopicView | Denied | None, FetchPartition]]


def readable_topic(
    view: ClusterView, rights: Rights, name: str, topic_id: bytes, *, by_id: bool
) -> TopicView | Denied | None:
    """The topic that a fetch names, by id or by name, if its client may read it."""
    topic = view.topics_by_id.get(topic_id) if by_id else view.topics_by_name.get(name)
    if rights.is_limited:
        known_name = topic.info.name if topic is not None else name
        if known_name and not rights.topic(READ, known_name):
            return DENIED
    return topic


class FetchReading:
    """Begins all reads before it waits for one.

    So a consumer that is behind waits for one round of GETs.
    """

    def __init__(
        self,
        topics: list[FetchTopic],
        answers: PartitionAnswers,
        find_topic: Callable[[str, bytes], TopicView | Denied | None],
        bytes_max: int,
    ) -> None:
        self._topics = topics
        self._answers = answers
        self._find_topic = find_topic
        self._bytes_max = bytes_max
        self.records_bytes = 0
        """The bytes of records in the answer."""

    def _wanted(self) -> Iterator[tuple[TopicView | Denied | None, FetchPartition]]:
        """Every partition of the request, in its order."""
        for name, topic_id, partitions in self._topics:
            topic = self._find_topic(name, topic_id)
            for wanted in partitions:
                yield topic, wanted

    def begin_all(self) -> Begun:
        return self._begin(ResponseRoom(self._bytes_max), self._wanted())

    async def begin_in_slices(self, turns: Turns) -> Begun:
        """Does what `begin_all` does, in slices.

        It is for so many partitions that others must have their turn in between.
        """
        room, wanted = ResponseRoom(self._bytes_max), self._wanted()
        begun: Begun = []
        while slice_of := list(islice(wanted, SLICE_LENGTH)):
            await turns.wait()
            begun += self._begin(room, slice_of)
        return begun

    def _begin(self, room: ResponseRoom, partitions: Wanted) -> Begun:
        begun: Begun = []
        for topic, wanted in partitions:
            share_bytes = room.share(wanted.bytes_max)
            each = self._answers.begin(topic, wanted, share_bytes, at_least_one=room.is_empty)
            if isinstance(each, PartitionRead):
                # Its size is not known yet. Most likely it takes all that there is, within its share.
                room.takes(min(share_bytes, self._answers.available_bytes(wanted, each.partition)))
            else:
                room.takes(records_bytes(each))
            begun.append(each)
        self.records_bytes = room.taken_bytes
        return begun

    async def finish(self, begun: Begun) -> FetchResponse:
        reads = [self._answers.read(each) for each in begun if isinstance(each, PartitionRead)]
        done = iter([await reads[0]] if len(reads) == 1 else await asyncio.gather(*reads))
        fetched = [next(done) if isinstance(each, PartitionRead) else each for each in begun]
        room = ResponseRoom(self._bytes_max)
        for place, each in enumerate(fetched):
            # An earlier partition may have turned out larger than expected. What does not fit now is read again soon.
            if each.records and not room.takes(records_bytes(each)):
                fetched[place] = without_records(each)
        if room.is_empty and reads:
            await self._read_any(begun, fetched, room)
        self.records_bytes = room.taken_bytes
        return self.response(fetched)

    async def _read_any(self, begun: Begun, fetched: list[FetchedPartition], room: ResponseRoom) -> None:
        """Read one batch of any partition.

        The one that was allowed a large batch turned out to have none.
        """
        for place, (topic, wanted) in enumerate(self._wanted()):
            before = begun[place]
            if fetched[place].error_code or (isinstance(before, PartitionRead) and before.at_least_one):
                continue
            again = self._answers.begin(topic, wanted, room.share(wanted.bytes_max), at_least_one=True)
            answer = await self._answers.read(again) if isinstance(again, PartitionRead) else again
            if answer.records and room.takes(records_bytes(answer)):
                fetched[place] = answer
                return

    def response(self, fetched: list[FetchedPartition]) -> FetchResponse:
        """The response, with the partitions in the order of the request."""
        answers = iter(fetched)
        return FetchResponse(
            [
                FetchedTopic(name, topic_id, list(islice(answers, len(partitions))))
                for name, topic_id, partitions in self._topics
            ]
        )
