"""A store that fails, and one that is slow with a long tail: no duplicate, no gap, and the order stays."""

import time
from pathlib import Path

import confluent_kafka
import pytest
from tests.kafka.clients import SteadyProducer
from tests.kafka.consistency import check_consistency
from tests.kafka.in_process import InProcessBraidlog
from tests.kafka.reading import check_idempotent, read_all
from tests.kafka.topics import create_topic
from tests.objects.faulty_store import FaultyStore

from braidlog.objects.faults import FaultPlan, FaultRates
from braidlog.objects.latency import LatencyProfile, SlowStore
from braidlog.objects.retries import RetryPolicy
from braidlog.objects.wrapper import Operation
from braidlog.runtime.backoff import Backoff
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy

RECORDS = 10_000
PARTITIONS = 4
TROUBLE = FaultRates(error=0.05, slow_down=0.05, timeout_before=0.04, timeout_after=0.06, late_put=0.05)
IMPATIENT = RetryPolicy(attempts_max=2, backoff=Backoff(0.01, 0.05), attempt_timeout_s=2, deadline_s=3)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("retry", [None, IMPATIENT], ids=["no retries", "few retries"])
def test_idempotent_producers_through_failing_uploads_and_restarts(retry: RetryPolicy | None, tmp_path: Path) -> None:
    plan = FaultPlan(SeededEntropy(3), hang_s=0.02, late_s_max=0.5)
    clock = SystemClock()
    with InProcessBraidlog(
        tmp_path,
        wrap=[lambda inner: FaultyStore(inner, plan, clock=clock)],
        retry=retry,
        upload_interval_ms=2,
        upload_size_bytes=4096,
    ) as braidlog:
        topic = create_topic(braidlog.bootstrap, PARTITIONS)
        plan.set_rates(TROUBLE, Operation.PUT)
        producer = SteadyProducer(
            braidlog.bootstrap,
            topic,
            partition_count=PARTITIONS,
            per_s=4_000,
            count_max=RECORDS,
            **{"enable.idempotence": True, "batch.num.messages": 20},
        )
        for _ in range(3):
            time.sleep(0.5)  # while it writes
            braidlog.restart_agent()
        producer.wait_sent()
        producer.stop(400)  # hundreds of small uploads, one after another: a busy disk takes half a second for each
        plan.calm()
        assert producer.sent_count == RECORDS
        assert sum(plan.injected.values()) > 0, "no upload failed"
        found = read_all(braidlog.bootstrap, topic, PARTITIONS)
    check_idempotent(producer, found, PARTITIONS)
    findings = check_consistency(braidlog.metadata_path, braidlog.store_url)
    assert findings.record_count == RECORDS


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_pipelined_producer_keeps_its_order_over_a_long_tailed_store(idempotent: bool, tmp_path: Path) -> None:
    """Uploads finish in any order; what one connection sent is sequenced in the order it came."""
    clock = SystemClock()
    profile = LatencyProfile(
        put_s_median=0.015, get_s_median=0.0, upload_bytes_per_s=90_000_000, download_bytes_per_s=600_000_000
    )
    with InProcessBraidlog(
        tmp_path,
        wrap=[lambda inner: SlowStore(inner, profile, clock=clock, entropy=SeededEntropy(8))],
        upload_interval_ms=2,
        upload_size_bytes=4096,
    ) as braidlog:
        topic = create_topic(braidlog.bootstrap, 2)
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": braidlog.bootstrap,
                "enable.idempotence": idempotent,
                "max.in.flight.requests.per.connection": 5 if idempotent else 50,
                **({} if idempotent else {"retries": 0}),
                "linger.ms": 0,
                "batch.num.messages": 5,
            }
        )
        offsets: dict[int, list[int]] = {0: [], 1: []}

        def report(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
            assert error is None, error
            offsets[message.partition()].append(message.offset())

        for i in range(2_000):
            producer.produce(topic, b"%0100d" % (i // 2), partition=i % 2, on_delivery=report)
            producer.poll(0)
        assert producer.flush(120) == 0
        found = read_all(braidlog.bootstrap, topic, 2)
    for partition in range(2):
        assert offsets[partition] == list(range(1_000))
        mine = [record.value for record in found if record.partition == partition]
        assert mine == [b"%0100d" % i for i in range(1_000)]
    # At most 50 of 200 requests or more are on their way at once, and only those can share an object.
    assert check_consistency(braidlog.metadata_path, braidlog.store_url).object_count > 3
