"""The settings of consumer groups. Defaults are Kafka's, if Kafka has the setting."""

from dataclasses import dataclass
from enum import Enum

from braidlog.runtime.errors import InvalidSetting


class MigrationPolicy(Enum):
    """Whether a group with members may migrate from one protocol to the other.

    The values are Kafka's.
    """

    DISABLED = "disabled"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    BIDIRECTIONAL = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.UPGRADE, MigrationPolicy.BIDIRECTIONAL)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.DOWNGRADE, MigrationPolicy.BIDIRECTIONAL)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    """How long the first rebalance of an empty group waits for more members."""
    new_member_join_timeout_ms: int = 300_000
    """How long the join of a new member may wait. It cannot send heartbeats yet, and may be gone."""
    members_per_group_max: int = 1_000
    groups_max: int = 100_000
    member_metadata_bytes_max: int = 1024 * 1024
    group_metadata_bytes_max: int = 64 * 1024 * 1024
    """The most metadata of all members of a group together. The leader gets it in one answer."""
    assignment_bytes_max: int = 64 * 1024 * 1024
    """The largest assignment of a group. The leader sends it in one request."""
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000
    """How long offsets are kept after the group became empty; without group management, after each commit."""
    consumer_session_timeout_ms: int = 45_000
    """The session timeout of members whose partitions the coordinator assigns. They do not choose it themselves."""
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_members_per_group_max: int = 10_000
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The assignors. The first is for groups whose members name none."""
    consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    unwritten_rows_max: int = 500_000
    """The most rows that may wait for the metadata store. Beyond it, commits are refused with a retriable error."""

    def __post_init__(self) -> None:
        if not 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max:
            raise InvalidSetting(
                f"no session timeout lies in {self.session_timeout_ms_min}..{self.session_timeout_ms_max} ms",
                help="group.min.session.timeout.ms must be above 0 and at most group.max.session.timeout.ms",
            )
        if self.initial_rebalance_delay_ms < 0:
            raise InvalidSetting(
                "the initial rebalance delay is negative", help="group.initial.rebalance.delay.ms is 0 or more"
            )
        if self.members_per_group_max < 1 or self.groups_max < 1:
            raise InvalidSetting("no group could have a member", help="group.max.size is 1 or more")
        if not 0 < self.consumer_heartbeat_interval_ms < self.consumer_session_timeout_ms:
            raise InvalidSetting(
                f"a consumer's session of {self.consumer_session_timeout_ms} ms ends before its next heartbeat",
                help="group.consumer.heartbeat.interval.ms must be below group.consumer.session.timeout.ms",
            )
