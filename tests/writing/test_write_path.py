"""The stages of the write path, put together around a store whose uploads finish when the test says so."""

import asyncio
import itertools

from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.objects.format import decode_object_tail
from braidlog.objects.layout import BatchEntry
from braidlog.objects.store import Bytes, StoreUnavailable
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.tasks import TaskGroup
from braidlog.scheduling.budget import PutBudget
from braidlog.scheduling.closing import CloseThresholds
from braidlog.writing.arena import Arena
from braidlog.writing.batcher import Batcher, BatchRules
from braidlog.writing.order import Order
from braidlog.writing.packing import Packer, Writer
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.uploader import Uploader
from braidlog.writing.uploads import Uploads

TOPIC = b"t" * 16


class GatedStore:
    """Only `put`: each waits until the test lets it pass or fail."""

    url = "memory://"

    def __init__(self) -> None:
        self.puts: list[tuple[str, bytes, asyncio.Future[None]]] = []

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.puts.append((key, bytes(data), gate))
        await gate
        return None


class RecordingSequencer:
    """Sequences in the order that drafts ask for, as the agent's own stage does."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.sequenced: list[Draft] = []
        self._tasks = tasks

    def submit(self, draft: Draft) -> None:
        self._tasks.spawn(self._sequence(draft))

    async def _sequence(self, draft: Draft) -> None:
        await draft.wait_predecessors()
        self.sequenced.append(draft)
        draft.settle()
        for requests in draft.partitions.values():
            for request in requests:
                request.way_back(request)


class WritePath:
    def __init__(self, *, size_bytes: int = 1000, in_flight_max: int = 8) -> None:
        self.clock = FakeClock()
        self.store = GatedStore()
        self.tasks = TaskGroup("test")
        self.sequencer = RecordingSequencer(self.tasks)
        self.done: list[WriteRequest] = []
        self.uploaded: list[str] = []
        uploader = Uploader(
            self.store,  # type: ignore[arg-type]
            Packer(Writer("abc", "z", lambda: 7), Arena(free_bytes_max=0), SystemClock(), SeededEntropy(1)),
            Uploads(
                self.sequencer,
                self.tasks,
                on_ended=lambda draft: self.batcher.uploaded(draft),
                on_stored=lambda key, _: self.uploaded.append(key),
            ),
        )
        self.batcher = Batcher(
            Order(uploader),
            BatchRules(
                CloseThresholds(size_bytes, 3600.0, in_flight_max, early_in_flight_max=in_flight_max), wait_s_max=30.0
            ),
            PutBudget(1e9, 1e9),
            self.clock,
        )

    def write(self, partition: int, data: bytes) -> WriteRequest:
        request = WriteRequest(TOPIC, partition, data, BatchEntry(len(data), 1, 0, 5), 5, -1, self.done.append)
        self.batcher.submit(request)
        return request


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_requests_of_one_turn_share_an_object_ordered_by_partition() -> None:
    path = WritePath()
    path.write(2, b"b" * 70)
    path.write(1, b"a" * 80)
    path.write(2, b"c" * 90)
    await turns()
    [(key, packed, gate)] = path.store.puts
    footer = decode_object_tail(packed, len(packed))
    assert [(extent.partition, extent.position, extent.length) for extent in footer.extents] == [
        (1, 0, 80),
        (2, 80, 160),
    ]
    assert packed.startswith(b"a" * 80 + b"b" * 70 + b"c" * 90)
    assert footer.write_epoch == 7
    assert not path.done
    gate.set_result(None)
    await turns()
    assert len(path.done) == 3
    assert path.uploaded == [key]


async def test_objects_that_finish_out_of_order_are_sequenced_in_order_where_they_share_a_partition() -> None:
    path = WritePath()
    first = path.write(1, b"first")
    await turns()
    second = path.write(1, b"second")
    await turns()
    other = path.write(2, b"other")
    await turns()
    gates = [gate for _, _, gate in path.store.puts]
    gates[1].set_result(None)
    gates[2].set_result(None)
    await turns()
    assert path.done == [other]
    gates[0].set_result(None)
    await turns()
    assert path.done == [other, first, second]


async def test_a_failed_upload_fails_its_own_requests_and_lets_the_next_go_on() -> None:
    path = WritePath()
    first = path.write(1, b"first")
    await turns()
    second = path.write(1, b"second")
    await turns()
    gates = [gate for _, _, gate in path.store.puts]
    gates[1].set_result(None)
    gates[0].set_exception(StoreUnavailable("503"))
    await turns()
    assert path.done == [first, second]
    assert first.error_code == ErrorCode.not_enough_replicas
    assert second.error_code == ErrorCode.none
    assert len(path.sequencer.sequenced) == 1


async def test_behind_a_failed_upload_the_order_still_holds() -> None:
    """The one in the middle fails at once: the last may not overtake the first because of that."""
    path = WritePath()
    requests = []
    for name in (b"first", b"middle", b"last"):
        requests.append(path.write(1, name))
        await turns()
    gates = [gate for _, _, gate in path.store.puts]
    gates[1].set_exception(StoreUnavailable("503"))
    gates[2].set_result(None)
    await turns()
    assert path.done == [requests[1]]
    gates[0].set_result(None)
    await turns()
    assert path.done == [requests[1], requests[0], requests[2]]


async def test_a_thousand_drafts_behind_one_are_released_without_deep_recursion() -> None:
    drafts = [Draft({(TOPIC, 0): []}, 0) for _ in range(5000)]
    for earlier, later in itertools.pairwise(drafts):
        later.follow(earlier)
    for draft in reversed(drafts):
        draft.settle()
    assert all(draft.is_released for draft in drafts)


async def test_with_all_uploads_taken_requests_gather_and_go_in_equal_objects() -> None:
    path = WritePath(size_bytes=100, in_flight_max=1)
    path.write(0, b"x")
    await turns()
    for _ in range(25):
        path.write(0, b"0123456789")
    await turns()
    assert len(path.store.puts) == 1
    for expected in range(2, 5):
        path.store.puts[-1][2].set_result(None)
        await turns()
        assert len(path.store.puts) == min(expected, 3)
    sizes = [len(packed) for _, packed, _ in path.store.puts[1:]]
    assert max(sizes) - min(sizes) <= 10 + 10


async def test_what_could_not_be_uploaded_in_time_is_refused_oldest_first() -> None:
    path = WritePath(in_flight_max=1)
    path.write(0, b"under way")
    await turns()
    stuck = path.write(0, b"stuck")
    await turns()
    path.clock.advance(29.0)
    fresh = path.write(0, b"fresh")
    await turns()
    path.clock.advance(1.0)
    path.write(0, b"another")
    await turns()
    assert path.done == [stuck]
    assert stuck.error_code == ErrorCode.not_enough_replicas
    path.store.puts[0][2].set_result(None)
    await turns()
    path.store.puts[1][2].set_result(None)
    await path.batcher.flush()
    await path.tasks.wait_all()
    assert fresh in path.done
    assert fresh.error_code == ErrorCode.none


async def test_an_upload_that_is_given_up_fails_its_requests() -> None:
    path = WritePath()
    request = path.write(0, b"x")
    await turns()
    await path.tasks.cancel_all()
    assert path.done == [request]
    assert request.error_code == ErrorCode.not_enough_replicas


async def test_flush_returns_when_everything_is_uploaded() -> None:
    path = WritePath(in_flight_max=1)
    path.write(0, b"one")
    await turns()
    path.write(0, b"two")
    flushing = asyncio.ensure_future(path.batcher.flush())
    await turns()
    assert not flushing.done()
    path.store.puts[0][2].set_result(None)
    await turns()
    path.store.puts[1][2].set_result(None)
    await turns()
    assert flushing.done()
    assert len(path.done) == 2


async def test_no_key_is_used_twice() -> None:
    path = WritePath(in_flight_max=32)
    for _ in range(20):
        path.write(0, b"x")
        await turns()
    keys = [key for key, _, _ in path.store.puts]
    assert len(set(keys)) == 20
    for _, _, gate in path.store.puts:
        gate.set_result(None)
    await path.batcher.flush()
    await path.tasks.wait_all()


class ByteCounter:
    """A stage of one's own, put in front of the batcher without the batcher knowing."""

    def __init__(self, next_stage: Batcher) -> None:
        self._next = next_stage
        self.bytes_by_topic: dict[bytes, int] = {}

    def submit(self, request: WriteRequest) -> None:
        topic_id = request.topic_id
        self.bytes_by_topic[topic_id] = self.bytes_by_topic.get(topic_id, 0) + request.entry.length
        self._next.submit(request)


async def test_a_stage_can_be_added_without_touching_the_others() -> None:
    path = WritePath()
    counter = ByteCounter(path.batcher)
    counter.submit(WriteRequest(TOPIC, 0, b"12345", BatchEntry(5, 1, 0, 5), 5, -1, path.done.append))
    await turns()
    path.store.puts[0][2].set_result(None)
    await turns()
    assert counter.bytes_by_topic == {TOPIC: 5}
    assert len(path.done) == 1
