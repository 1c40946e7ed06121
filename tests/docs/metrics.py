"""`docs/metrics.md`, written from what the parts of a cluster tell Prometheus."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from tests.docs.tables import WRITTEN_BY, code, table
from tests.fakes import FakeClock

from braidlog.agent.agent import Agent
from braidlog.control.groups.meters import GroupMeters
from braidlog.control.journals.meters import JournalMeters
from braidlog.control.metadata.meters import CopyMeters
from braidlog.control.metadata.shipped import with_copy
from braidlog.control.metadata.store import DumpedMetadata, open_metadata
from braidlog.control.service import ControlService
from braidlog.control.settings import ControlSettings
from braidlog.objects.memory import MemoryBucket, MemoryStore
from braidlog.objects.metered import StoreMetrics
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.metrics import Metrics
from braidlog.runtime.settings import AgentSettings
from braidlog.runtime.watchdog import Watchdog
from braidlog.writing.shards.board import Board, BoardShape
from braidlog.writing.shards.file_states import FileStates
from braidlog.writing.shards.link import ShardLinks

OPENING = f"""# Metrics

{WRITTEN_BY}

Every process serves its metrics at `/metrics` in Prometheus's text format: agents and `braid up` at `metrics_listen`
(`127.0.0.1:9404`), a control plane of its own at `control_metrics_listen` (`127.0.0.1:9405`). `braid up` has the
metrics of both. An agent with several shards serves all of them at one address, each with the label `shard`.

```console
$ curl -s http://127.0.0.1:9404/metrics | grep -c '^# TYPE braidlog_agent_request_seconds histogram'
1
```

Beside `/metrics` there are `/healthz`, which fails when the process should be started again, and `/readyz`, which fails
while it cannot serve clients. [operations.md](operations.md) says which metrics to watch, and what to do."""

SECTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Requests", "From Kafka clients. Agents.", ("braidlog_agent_request", "braidlog_agent_connections")),
    (
        "Uploads",
        "From arrival to the object store. Agents.",
        (
            "braidlog_upload_bytes",
            "braidlog_upload_usd",
            "braidlog_agent_backlog",
            "braidlog_agent_uploads",
            "braidlog_agent_write_epoch",
        ),
    ),
    ("Groups of shards", "Agents with several shards.", ("braidlog_upload_",)),
    ("Reads", "Caches and the view of the cluster. Agents.", ("braidlog_agent_",)),
    ("Journals", "Lightning topics and Ripcord. Agents.", ("braidlog_journal_",)),
    ("Ripcord", "How agents do without the control plane. Agents.", ("braidlog_ripcord_",)),
    ("Consumer groups", "Control plane.", ("braidlog_consumer_group_",)),
    ("Copy of the metadata", "Control plane, for `sqlite` and `postgresql` metadata.", ("braidlog_metadata_copy_",)),
    ("Journals at the control plane", "Control plane.", ("braidlog_control_journal_",)),
    ("Object store", "Every process.", ("braidlog_store_",)),
    ("Process", "Every process.", ("braidlog_event_loop_", "braidlog_build_")),
)
"""Title, whose metrics they are, and how their names begin. A metric stands in the first section that takes it."""

CLOSING = """On Linux there are also Prometheus's own `process_cpu_seconds_total`, `process_resident_memory_bytes`,
`process_open_fds`, `process_max_fds`, `process_virtual_memory_bytes` and `process_start_time_seconds`."""


class OwnLink:
    """A shard's link to nobody else."""

    def __init__(self) -> None:
        shape = BoardShape(2, slot_count=8, arena_bytes=4096)
        self.shard = 0
        self.board = Board(memoryview(bytearray(shape.size_bytes)), shape)
        self.other_board = None
        self.files = FileStates(memoryview(bytearray(FileStates.size_bytes(2, 8))), 2, 8)

    def try_lock(self, group: int) -> bool:
        return True

    def unlock(self, group: int) -> None: ...

    def wake(self, shard: int) -> None: ...

    def listen(self, woken: object) -> None: ...


async def metrics_page() -> str:
    families = await collect_all()
    parts = [OPENING]
    for title, whose, beginnings in SECTIONS:
        here = [name for name in sorted(families) if name.startswith(beginnings)]
        rows = [_row(families.pop(name)) for name in here]
        parts.append(f"## {title}\n\n{whose}\n\n{table(['metric', 'type', 'labels', 'meaning'], rows)}")
    assert not families, f"add a section for {sorted(families)}"
    return "\n\n".join([*parts, CLOSING]) + "\n"


def _row(family: tuple[Metric, tuple[str, ...]]) -> list[str]:
    metric, labels = family
    name = f"{metric.name}_total" if metric.type == "counter" else metric.name
    return [code(name), metric.type, ", ".join(code(label) for label in labels), metric.documentation]


async def collect_all() -> dict[str, tuple[Metric, tuple[str, ...]]]:
    """Every metric of a cluster by its name, with the names of its labels."""
    clock = FakeClock()
    store = MemoryStore(MemoryBucket(), url="memory://", clock=clock)
    metadata = await open_metadata("sqlite://")
    assert isinstance(metadata, DumpedMetadata)
    service = ControlService(metadata, store, clock, SeededEntropy(1), ControlSettings())
    await service.start()
    try:
        metrics = Metrics()
        Agent(service, store, clock, SeededEntropy(2), AgentSettings(), metrics, ShardLinks(OwnLink(), OwnLink()))
        for collector in (
            JournalMeters(service.parts.journals),
            CopyMeters(with_copy(metadata, store, clock, SeededEntropy("copy"), interval_s=10.0)),
            GroupMeters(service.parts.groups.commits.offsets, service.parts.catalog),
            Watchdog(clock),
        ):
            metrics.register(collector)
        return {**_families(metrics.registry.collect()), **_store_families()}
    finally:
        await service.close()


def _store_families() -> dict[str, tuple[Metric, tuple[str, ...]]]:
    counted = vars(StoreMetrics(CollectorRegistry())).values()
    return {name: family for metric in counted for name, family in _families(metric.collect(), metric).items()}


def _families(
    metrics: Iterable[Metric], collector: Collector | None = None
) -> dict[str, tuple[Metric, tuple[str, ...]]]:
    """A metric without samples does not tell its labels, so they are taken from whatever declares them."""
    return {
        metric.name: (metric, tuple(getattr(collector or metric, "_labelnames", _labels(metric))))
        for metric in metrics
        if metric.name.startswith("braidlog_")
    }


def _labels(metric: Metric) -> list[str]:
    return [label for sample in metric.samples for label in sample.labels]
