"""A log that is correct by construction, and clients that record what they do to it. It makes histories for tests.

Every operation takes effect at one instant between its invocation and its completion, except where nobody knows: then
later, or never. Times are whole numbers, so that many things happen at once.
"""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from braidlog.sim.history import (
    AnyOperation,
    Assigned,
    CommitOffset,
    FetchOffset,
    FinalRead,
    History,
    ListOffset,
    Outcome,
    Poll,
    Send,
)

Place = tuple[str, int]


@dataclass
class _Partition:
    records: list[str] = field(default_factory=list)
    log_start: int = 0


class LogModel:
    def __init__(self, seed: int, *, partition_count: int = 2, sends_max: int = 12) -> None:
        self._random = random.Random(seed)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._now = 0
        self._history = History()
        self._places: list[Place] = [("t", at) for at in range(partition_count)]
        self._partitions = {place: _Partition() for place in self._places}
        self._committed: dict[Place, int] = dict.fromkeys(self._places, -1)
        self._sends_max = sends_max

    def run(self) -> History:
        for place in self._places:
            for client in range(2):
                self._idempotent(f"idempotent-{client}", place)
                self._plain(f"plain-{client}", place, retries=False)
                self._plain(f"retrying-{client}", place, retries=True)
                self._reader(f"reader-{client}", place, 0, is_reset=True)
            self._committer("member", place)
            if self._random.random() < 0.5:
                self._at(self._random.randint(1, 30), lambda place=place: self._delete(place))  # type: ignore[misc]
        self._assign()
        while self._events:
            self._now, _, act = heapq.heappop(self._events)
            act()
        for topic, partition in self._places:
            log = self._partitions[topic, partition]
            self._history.record(
                FinalRead(
                    client="final",
                    invoke_s=self._now + 1,
                    complete_s=self._now + 2,
                    topic=topic,
                    partition=partition,
                    log_start_offset=log.log_start,
                    high_watermark=len(log.records),
                    records=[(at, log.records[at]) for at in range(log.log_start, len(log.records))],
                )
            )
        return self._history

    def _at(self, time_s: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(time_s, self._now), self._count, act))

    def _soon(self, least: int = 0) -> int:
        return max(self._now, least) + self._random.randint(0, 3)

    def _record_at(self, time_s: int, make: Callable[[], AnyOperation]) -> None:
        self._at(time_s, lambda: self._history.record(make()))

    def _outcome(self) -> Outcome:
        return self._random.choices(["ok", "unknown", "failed"], [8, 1, 1])[0]  # type: ignore[return-value]

    # ── producers ──

    def _idempotent(self, client: str, place: Place) -> None:
        """Several under way at once, taking effect in order. After one that is not acknowledged it takes a new id."""
        producer, invoked, effect = 0, 0, 0
        for order in range(self._random.randint(0, self._sends_max)):
            invoked = self._soon(invoked)
            effect = self._soon(max(invoked, effect))
            outcome = self._outcome()
            times = 1 if outcome == "ok" else self._random.randint(0, 1) if outcome == "unknown" else 0
            completed = self._soon(effect)
            if outcome == "unknown":
                completed = self._random.randint(invoked, completed)
            name = f"{client}/{place[1]}/{producer}"
            self._send(client, place, order, name, invoked, [effect] * times, completed, outcome)
            if outcome != "ok":
                producer += 1

    def _plain(self, client: str, place: Place, *, retries: bool) -> None:
        invoked, effect = 0, 0
        for order in range(self._random.randint(0, self._sends_max)):
            invoked = self._soon(invoked)
            effect = self._soon(max(invoked, effect))
            outcome = self._outcome()
            times = self._random.randint(1, 3 if retries else 1)
            if outcome != "ok":
                times = 0 if outcome == "failed" else self._random.randint(0, times)
            effects = sorted([effect, *(self._soon(effect) for _ in range(times - 1))])[:times]
            completed = self._soon(max([effect, *effects]))
            if outcome == "unknown":
                completed, effects = self._random.randint(invoked, completed), [at + 10 for at in effects]
            self._send(client, place, order, "", invoked, effects, completed, outcome, retried=retries and times != 1)

    def _send(
        self,
        client: str,
        place: Place,
        order: int,
        producer: str,
        invoked: int,
        effects: list[int],
        completed: int,
        outcome: Outcome,
        *,
        retried: bool = False,
    ) -> None:
        value = f"{client}/{place[1]}/{order}"
        offsets: list[int] = []
        records = self._partitions[place].records

        def take_effect() -> None:
            offsets.append(len(records))
            records.append(value)

        for at in effects:
            self._at(at, take_effect)
        is_told = outcome == "ok" and self._random.random() < 0.8
        self._record_at(
            completed,
            lambda: Send(
                client=client,
                invoke_s=invoked,
                complete_s=completed,
                topic=place[0],
                partition=place[1],
                value=value,
                order=order,
                producer=producer,
                retried=retried,
                outcome=outcome,
                offset=offsets[-1] if is_told else -1,
                error="" if outcome == "ok" else "disconnected",
            ),
        )

    def _delete(self, place: Place) -> None:
        log = self._partitions[place]
        log.log_start = self._random.randint(log.log_start, len(log.records))

    # ── consumers ──

    def _reader(self, client: str, place: Place, offset: int, *, is_reset: bool, left: int = 12) -> None:
        if left == 0:
            return
        invoked = self._now
        log = self._partitions[place]

        def read() -> None:
            completed = self._soon()
            if offset < log.log_start:
                self._at(completed, lambda: self._reader(client, place, log.log_start, is_reset=True, left=left - 1))
                return
            end = min(len(log.records), offset + self._random.randint(0, 8))
            log_start, found = log.log_start, [(at, log.records[at]) for at in range(offset, end)]
            self._record_at(
                completed,
                lambda: Poll(
                    client=client,
                    invoke_s=invoked,
                    complete_s=completed,
                    topic=place[0],
                    partition=place[1],
                    fetch_offset=offset,
                    records=found,
                    log_start_offset=log_start,
                    is_reset=is_reset,
                ),
            )
            self._list(client, place)
            self._at(completed, lambda: self._reader(client, place, end, is_reset=False, left=left - 1))

        self._at(self._soon(), read)

    def _list(self, client: str, place: Place) -> None:
        invoked, completed, end = self._random.randint(0, self._now), self._soon(), len(self._partitions[place].records)
        self._record_at(
            completed,
            lambda: ListOffset(
                client=client,
                invoke_s=invoked,
                complete_s=completed,
                topic=place[0],
                partition=place[1],
                which="latest",
                offset=end,
            ),
        )

    # ── groups ──

    def _committer(self, client: str, place: Place) -> None:
        for _ in range(self._random.randint(0, 15)):
            invoked = self._random.randint(0, 40)
            effect = self._soon(invoked)
            completed = self._soon(effect)
            if self._random.random() < 0.4:
                self._fetch_offset(client, place, invoked, effect, completed)
            else:
                self._commit(client, place, invoked, effect, completed)

    def _commit(self, client: str, place: Place, invoked: int, effect: int, completed: int) -> None:
        offset, outcome = self._random.randint(0, 20), self._outcome()
        if outcome == "ok" or (outcome == "unknown" and self._random.random() < 0.5):
            late = self._random.choice([0, 15]) if outcome == "unknown" else 0
            self._at(effect + late, lambda: self._committed.__setitem__(place, offset))
        self._record_at(
            completed,
            lambda: CommitOffset(
                client=client,
                invoke_s=invoked,
                complete_s=completed,
                group="g",
                topic=place[0],
                partition=place[1],
                offset=offset,
                outcome=outcome,
            ),
        )

    def _fetch_offset(self, client: str, place: Place, invoked: int, effect: int, completed: int) -> None:
        found: list[int] = []
        self._at(effect, lambda: found.append(self._committed[place]))
        self._record_at(
            completed,
            lambda: FetchOffset(
                client=client,
                invoke_s=invoked,
                complete_s=completed,
                group="g",
                topic=place[0],
                partition=place[1],
                offset=found[0],
            ),
        )

    def _assign(self) -> None:
        for generation in range(1, 4):
            members = self._random.randint(1, 3)
            owners = {place: self._random.randrange(members) for place in self._places}
            for member in range(members):
                owned = [place for place, owner in owners.items() if owner == member]
                self._record_at(
                    generation * 10,
                    lambda member=member, generation=generation, owned=owned: Assigned(  # type: ignore[misc]
                        client=f"member-{member}",
                        invoke_s=generation * 10,
                        complete_s=generation * 10,
                        group="g",
                        generation=generation,
                        partitions=owned,
                    ),
                )
