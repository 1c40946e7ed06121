"""The settings of jobs."""

from dataclasses import dataclass

from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.limits import OBJECT_BYTES_MAX

MIB = 1024 * 1024
RUNS_PER_JOB_MAX = 16


@dataclass(frozen=True, slots=True)
class JobSettings:
    plan_interval_s: float = 15.0
    """How often to look for extents to merge and partitions to compact."""
    lease_s: float = 30.0
    """How long a lease lasts after its last heartbeat."""
    merge_target_bytes: int = 64 * MIB
    merge_fan_in: int = 16
    """How many neighbours of about the same size to merge into one. A record moves once for every power of it."""
    merge_age_s: float = 60.0
    """The least age of extents to merge: the readers of younger ones have them in caches."""
    compaction_bytes_min: int = MIB
    """A partition with fewer dirty bytes waits for `compaction_interval_s`, however large their share is."""
    compaction_interval_s: float = 600.0
    extents_per_job_max: int = 10_000

    def __post_init__(self) -> None:
        if not 0 < self.merge_target_bytes <= OBJECT_BYTES_MAX // 2:
            raise InvalidSetting(
                f"objects of {self.merge_target_bytes} bytes cannot be made", help=f"1 to {OBJECT_BYTES_MAX // 2}"
            )
        if self.merge_fan_in < 2:
            raise InvalidSetting("one extent cannot be merged with itself", help="merge_fan_in is 2 or more")

    @property
    def bytes_per_job_max(self) -> int:
        """The most that one merge job has of several partitions."""
        return 2 * self.merge_target_bytes

    @property
    def bytes_per_partition_max(self) -> int:
        """The most that one merge job has of one partition.

        Its worker splits it over several tasks.
        """
        return RUNS_PER_JOB_MAX * self.merge_target_bytes
