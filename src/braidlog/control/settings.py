"""What an operator may choose about the control plane."""

from dataclasses import dataclass, field

from braidlog.control.group_settings import GroupSettings
from braidlog.control.job_settings import JobSettings
from braidlog.control.journal_settings import JournalSettings
from braidlog.control.transaction_settings import TransactionSettings
from braidlog.runtime.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class ControlSettings:
    heartbeat_interval_s: float = 2.0
    """How often agents are asked to be heard of."""
    session_timeout_s: float = 10.0
    """An agent that was not heard of for so long is taken for gone."""
    epoch_interval_s: float = 60.0
    """How often the write epoch advances."""
    grace_epochs: int = 60
    """How many epochs an upload may take before its commit is refused and its object swept."""
    sweep_interval_s: float = 60.0
    full_sweep_interval_s: float = 24 * 3600.0
    """How often the whole bucket is listed, for objects that appeared after their epoch was swept."""
    unreferenced_grace_s: float = 600.0
    """How long an object whose last extent was dropped stays, for reads that are under way."""
    retention_interval_s: float = 60.0
    producer_expiration_s: float = 24 * 3600.0
    write_lease_s: float = 600.0
    """How long writers that are not agents may be silent before what they have uploaded is given up."""
    writer_expiration_s: float = 30 * 24 * 3600.0
    """How long it is remembered which batches a writer has committed."""
    group_expiry_interval_s: float = 600.0
    """How often offsets and groups that nobody uses any more are looked for."""
    producer_states_max: int = 1_000_000
    """Producer states (one per producer and partition) kept in memory."""
    recent_extents_max: int = 65_536
    """Extents kept in memory and by object before they move to where they are found by partition."""
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
                f"a transaction of {self.transactions.timeout_ms_max / 1000} s outlives what is known of its producer",
                help="Make transaction.max.timeout.ms at most half of the producers' expiration.",
            )
        if self.grace_epochs < 1:
            raise InvalidSetting("no upload could ever finish in time", help="grace_epochs is 1 or more")
