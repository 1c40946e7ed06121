"""The settings of the control plane."""

from dataclasses import dataclass, field

from braidlog.configs.topic_definitions import MINUTE_MS
from braidlog.control.groups.settings import GroupSettings
from braidlog.control.jobs.settings import JobSettings
from braidlog.control.journals.settings import JournalSettings
from braidlog.control.transactions.settings import TransactionSettings
from braidlog.runtime.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class ControlSettings:
    holder: str = "this control plane"
    """The name of this process, for people."""
    heartbeat_interval_s: float = 2.0
    """How often agents send a heartbeat."""
    session_timeout_s: float = 10.0
    """An agent is taken for dead after so long without a heartbeat."""
    epoch_interval_s: float = 60.0
    """How often the write epoch advances."""
    grace_epochs: int = 60
    """How many write epochs may pass before a commit is refused and its object swept."""
    sweep_interval_s: float = 60.0
    full_sweep_interval_s: float = 24 * 3600.0
    """How often to list the whole bucket, for objects that appeared after their epoch was swept."""
    unreferenced_grace_s: float = 600.0
    """How long to keep an object after its last extent was dropped, for reads that are under way."""
    retention_interval_s: float = 60.0
    producer_expiration_s: float = 24 * 3600.0
    write_lease_s: float = 600.0
    """How long a writer that is not an agent may be silent before its uploads are given up."""
    writer_expiration_s: float = 30 * 24 * 3600.0
    """How long to remember the batches that a writer has committed."""
    group_expiry_interval_s: float = 600.0
    """How often to look for offsets and groups that nobody uses any more."""
    producer_states_max: int = 1_000_000
    """How many producer states (one per producer and partition) to keep in memory."""
    recent_extents_max: int = 65_536
    """How many recent extents to keep in memory, stored by object, before they move to the index by partition."""
    feed_events_max: int = 100_000
    feed_bytes_max: int = 64 * 1024 * 1024
    groups: GroupSettings = field(default_factory=GroupSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    journals: JournalSettings = field(default_factory=JournalSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)

    def __post_init__(self) -> None:
        if self.session_timeout_s <= self.heartbeat_interval_s:
            raise InvalidSetting(
                f"a session of {self.session_timeout_s} s ends before a heartbeat, every {self.heartbeat_interval_s} s",
                help="Make the session timeout at least three times the heartbeat interval.",
            )
        if self.transactions.timeout_ms_max > self.producer_expiration_s * 500:
            raise InvalidSetting(
                f"a transaction of {self.transactions.timeout_ms_max / 1000} s outlives the state of its producer",
                help="Make transaction.max.timeout.ms at most half of the producers' expiration.",
            )
        if self.grace_epochs < 1:
            raise InvalidSetting("no upload could ever finish in time", help="grace_epochs is 1 or more")


def configs_in_force(settings: ControlSettings) -> dict[str, str]:
    """Return the settings that Kafka has names for.

    They are read-only configs of the cluster.
    """
    groups, transactions = settings.groups, settings.transactions
    values = {
        "group.consumer.heartbeat.interval.ms": groups.consumer_heartbeat_interval_ms,
        "group.consumer.session.timeout.ms": groups.consumer_session_timeout_ms,
        "group.initial.rebalance.delay.ms": groups.initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": groups.session_timeout_ms_max,
        "group.max.size": groups.members_per_group_max,
        "group.min.session.timeout.ms": groups.session_timeout_ms_min,
        "offset.metadata.max.bytes": groups.offset_metadata_bytes_max,
        "offsets.retention.minutes": groups.offsets_retention_ms // MINUTE_MS,
        "transaction.max.timeout.ms": transactions.timeout_ms_max,
        "transactional.id.expiration.ms": transactions.id_expiration_ms,
    }
    return {name: str(value) for name, value in values.items()}
