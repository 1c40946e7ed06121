"""The settings of journals."""

from dataclasses import dataclass

from braidlog.runtime.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class JournalSettings:
    scan_interval_s: float = 30.0
    """How often to scan for unreported journals. No scans run unless there is a Lightning topic, or an agent that may
    write journals."""
    sequence_age_s: float = 60_000.0
    """How long agents write to one journal sequence. One that is twice as old is sealed."""
    gap_s: float = 60.0
    """How long a batch of an idempotent producer waits for earlier ones."""
    gap_s_max: float = 6 * 3600.0
    """How long it waits at most if earlier journals, which may have them, could not be replayed."""
    held_batches_max: int = 100_000
    """How many batches may be held. Beyond it the oldest are given up."""
    replay_files_per_s: float = 200.0
    """How many files per second replays may have sequenced; 0: no limit."""

    def __post_init__(self) -> None:
        if min(self.scan_interval_s, self.sequence_age_s, self.gap_s) <= 0:
            raise InvalidSetting("an interval or age of journals is not above 0", help="Give seconds above 0.")
        if self.gap_s_max < self.gap_s:
            raise InvalidSetting(
                f"a batch waits for {self.gap_s} s, and for {self.gap_s_max} s at the most",
                help="gap_s_max is at least gap_s.",
            )
        if self.held_batches_max < 1 or self.replay_files_per_s < 0:
            raise InvalidSetting("a limit of journals is too low", help="held_batches_max is 1 or more.")
