"""A client that does what a test says, over a simulated cluster, and notes it down as others do."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from braidlog.control.journals.settings import JournalSettings
from braidlog.records.batch import BatchProducer
from braidlog.records.record import encode_batch
from braidlog.sim.clients.producers import (
    INIT_PRODUCER_ID,
    INIT_PRODUCER_ID_VERSION,
    POSSIBLY_WRITTEN,
    PRODUCE,
    PRODUCE_VERSION,
    record_of,
)
from braidlog.sim.clients.wire_client import request_types
from braidlog.sim.cluster import CONTROL_SETTINGS, KAFKA_PORT, ClusterPlan
from braidlog.sim.history import FinalRead, History, Send
from braidlog.sim.virtual.clock import EPOCH_MS
from braidlog.sim.world import World

TOPIC = "clicks"


def plan(*, sequence_age_s: float = 60.0, gap_s: float = 30.0, **control: Any) -> ClusterPlan:
    journals = JournalSettings(scan_interval_s=0.5, sequence_age_s=sequence_age_s, gap_s=gap_s, replay_files_per_s=0.0)
    return ClusterPlan(
        upload_interval_ms=20,
        control=replace(CONTROL_SETTINGS, journals=journals, **control),
        agent={"sequence_age_ms": int(sequence_age_s * 1000)},
    )


def log_of(history: History) -> list[str]:
    """The values of the log, as they were read at the end."""
    [final] = [each for each in history.operations if isinstance(each, FinalRead)]
    return [value for _, value in final.records]


class Script:
    """One partition of a Lightning topic, and one producer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._session = world.session("script")
        self._sent: list[str] = []
        self._producer_id = -1

    async def begin(self) -> None:
        await self.world.create_topic(TOPIC, 1, braidlog_topic_type="lightning")
        types = request_types(INIT_PRODUCER_ID, INIT_PRODUCER_ID_VERSION)
        connection = await self._session.any_connection()
        answer = await connection.call(
            INIT_PRODUCER_ID,
            INIT_PRODUCER_ID_VERSION,
            types.InitProducerIdRequest(
                transactional_id=None,
                transaction_timeout=i32Timedelta.parse(timedelta(seconds=10)),
                producer_id=-1,
                producer_epoch=-1,
            ),
        )
        self._producer_id = answer.producer_id
        # Until every agent knows of the topic.
        await self.world.sleep(1.0)

    async def send(self, agent: str, value: str, sequence: int, *, epoch: int = 0) -> ErrorCode:
        """One record by way of one agent. A value that was sent before is sent again."""
        invoke_s = self._session.now_s
        connection = await self._session.connection((agent, KAFKA_PORT))
        types = request_types(PRODUCE, PRODUCE_VERSION)
        records = encode_batch(
            [record_of(0, EPOCH_MS + int(invoke_s * 1000), value, has_key=False)],
            producer=BatchProducer(self._producer_id, epoch, sequence),
        )
        answer = await connection.call(
            PRODUCE,
            PRODUCE_VERSION,
            types.ProduceRequest(
                transactional_id=None,
                acks=-1,
                timeout=i32Timedelta.parse(timedelta(seconds=30)),
                topic_data=(
                    types.TopicProduceData(
                        name=TOPIC, partition_data=(types.PartitionProduceData(index=0, records=records),)
                    ),
                ),
            ),
            timeout_s=100.0,
        )
        code: ErrorCode = answer.responses[0].partition_responses[0].error_code
        self._note(value, invoke_s, code, epoch)
        return code

    def _note(self, value: str, invoke_s: float, code: ErrorCode, epoch: int) -> None:
        is_new = value not in self._sent
        if is_new:
            self._sent.append(value)
        elif code == ErrorCode.none:
            return  # what is there once is not there twice because it was sent twice
        unclear = "unknown" if code in POSSIBLY_WRITTEN else "failed"
        self.world.history.record(
            Send(
                client="script",
                invoke_s=invoke_s,
                complete_s=self._session.now_s,
                topic=TOPIC,
                partition=0,
                value=value,
                order=self._sent.index(value),
                producer=f"{self._producer_id}.{epoch}",
                retried=not is_new,
                outcome="ok" if code == ErrorCode.none else unclear,
                error="" if code == ErrorCode.none else code.name,
                lazy=True,
            )
        )

    @property
    def counts(self) -> Any:
        """What the control plane knows of journals."""
        control = self.world.cluster.control
        assert control is not None
        return control.parts.journals.statistics()

    def incarnation(self, agent: str) -> str:
        return self.world.cluster.agents[agent].incarnation

    def cut_off(self, agent: str) -> None:
        """From the control plane: it acknowledges, and nothing is sequenced."""
        self.world.cluster.network.block(agent, "control")
        self.world.cluster.network.block("control", agent)
