"""What a partition holds, as it is served: the bytes of its batches, which clients do not show."""

from kio.schema.errors import ErrorCode
from tests.kafka.conformance.wire import Wire, ms, part

from braidlog.records.batch import BatchHeader, scan_batches

FETCH = 1
FETCH_BYTES_MAX = 20_000_000


def stored_batches(bootstrap: str, topic: str) -> list[tuple[BatchHeader, memoryview]]:
    """The batches of a small topic's first partition, each with its header."""
    partition = part(
        "FetchPartition",
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=0,
        log_start_offset=-1,
        partition_max_bytes=FETCH_BYTES_MAX,
    )
    request = part(
        "FetchRequest",
        replica_id=-1,
        max_wait=ms(5_000),
        min_bytes=1,
        max_bytes=FETCH_BYTES_MAX,
        isolation_level=0,
        session_id=0,
        session_epoch=-1,
        topics=[part("FetchTopic", topic=topic, partitions=[partition])],
        forgotten_topics_data=(),
        rack_id="",
    )
    with Wire(bootstrap) as wire:
        answer = wire.call(FETCH, request, version=11).responses[0].partitions[0]
    assert answer.error_code == ErrorCode.none
    records = memoryview(answer.records or b"")
    return [(header, records[start : start + header.total_bytes]) for start, header in scan_batches(records)]
