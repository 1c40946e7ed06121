"""Simulated consumers of committed data, which drop aborted records."""

from kio.schema.errors import ErrorCode

from braidlog.records.batch import scan_batches
from braidlog.records.marker import MarkerType, decode_marker
from braidlog.records.record import decode_batch
from braidlog.sim.clients.consumers import BYTES_MAX, FETCH, FETCH_VERSION, Follower, fetch_request
from braidlog.sim.clients.producers import text_of
from braidlog.sim.clients.session import ClientSession
from braidlog.sim.clients.wire_client import Disconnected
from braidlog.sim.history import CommittedPoll, FinalCommitted

STABLE_WAIT_S_MAX = 120.0
"""The last open transaction ends by its timeout within this time."""


class FetchedCommitted:
    """The result of one fetch, without aborted records."""

    __slots__ = ("high_watermark", "log_start_offset", "next_offset", "records", "stable_offset")

    def __init__(self, offset: int, log_start_offset: int, high_watermark: int, stable_offset: int) -> None:
        self.records: list[tuple[int, str]] = []
        self.next_offset = offset
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark
        self.stable_offset = stable_offset


async def fetch_committed(session: ClientSession, topic: str, partition: int, offset: int) -> FetchedCommitted:
    connection = await session.leader(topic, partition)
    answer = await connection.call(
        FETCH, FETCH_VERSION, fetch_request(topic, partition, offset, wait_s=0.3, isolation_level=1)
    )
    found = answer.responses[0].partitions[0]
    if found.error_code != ErrorCode.none:
        session.forget(topic, partition)
        raise Disconnected(f"fetch: {found.error_code.name}")
    result = FetchedCommitted(offset, found.log_start_offset, found.high_watermark, found.last_stable_offset)
    waiting = sorted(((each.first_offset, each.producer_id) for each in found.aborted_transactions or ()), reverse=True)
    aborted: set[int] = set()
    data = memoryview(found.records or b"")
    for position, header in scan_batches(data):
        batch = data[position : position + header.total_bytes]
        result.next_offset = max(result.next_offset, header.end_offset)
        while waiting and waiting[-1][0] < header.end_offset:
            aborted.add(waiting.pop()[1])
        if header.is_control:
            marker = decode_marker(batch)
            if marker is not None and marker.type is MarkerType.ABORT:
                aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            result.records.extend(
                (record.offset, text_of(record))
                for record in decode_batch(batch, bytes_max=BYTES_MAX)
                if record.offset >= offset
            )
    return result


class CommittedReader(Follower):
    async def _follow(self, topic: str, partition: int) -> None:
        session = self._session
        offset = 0
        while not self.stopping:
            invoke_s = session.now_s
            try:
                found = await fetch_committed(session, topic, partition, offset)
            except (Disconnected, TimeoutError):
                session.forget(topic, partition)
                await session.pause()
                continue
            session.history.record(
                CommittedPoll(
                    client=session.name,
                    invoke_s=invoke_s,
                    complete_s=session.now_s,
                    topic=topic,
                    partition=partition,
                    fetch_offset=offset,
                    next_offset=found.next_offset,
                    records=found.records,
                )
            )
            offset = found.next_offset


async def read_committed_whole(session: ClientSession, topic: str, partition: int) -> None:
    """Read all committed data, once no transaction is open.

    If one stays open, read what there is.
    """
    invoke_s = session.now_s
    deadline_s = invoke_s + STABLE_WAIT_S_MAX
    records: list[tuple[int, str]] = []
    offset = 0
    while True:

        async def read(at: int = offset) -> FetchedCommitted:
            return await fetch_committed(session, topic, partition, at)

        found: FetchedCommitted = await session.retry(read)
        records += found.records
        offset = found.next_offset
        if offset >= found.high_watermark or (offset >= found.stable_offset and session.now_s > deadline_s):
            break
    session.history.record(
        FinalCommitted(
            client=session.name,
            invoke_s=invoke_s,
            complete_s=session.now_s,
            topic=topic,
            partition=partition,
            high_watermark=found.high_watermark,
            stable_offset=found.stable_offset,
            records=records,
        )
    )
