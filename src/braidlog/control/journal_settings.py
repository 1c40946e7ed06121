"""What an operator may choose about journals."""

from dataclasses import dataclass

from braidlog.runtime.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class JournalSettings:
    scan_interval_s: float = 30.0
    """How often it is looked for journals that nobody has told of. There are none to look for unless a topic is a
    Lightning topic, or an agent may write journals."""
    sequence_age_s: float = 60.0
    """How long agents write to one sequence. One that is twice as old is sealed."""
    gap_s: float = 60.0
    """How long a batch of an idempotent producer waits for what comes before it."""
    gap_s_max: float = 6 * 3600.0
    """And where journals of before it was there could not be replayed, which may have it."""
    held_batches_max: int = 100_000
    """Beyond it those that have waited longest wait no longer."""
    replay_files_per_s: float = 200.0
    """How many files a second replays may have sequenced; 0: as many as they bring."""

    def __post_init__(self) -> None:
        if min(self.scan_interval_s, self.sequence_age_s, self.gap_s) <= 0:
            raise InvalidSetting("journals must have time", help="Intervals and ages are above 0.")
        if self.gap_s_max < self.gap_s:
            raise InvalidSetting(
                f"a batch waits for {self.gap_s} s, and for {self.gap_s_max} s at the most",
                help="gap_s_max is at least gap_s.",
            )
        if self.held_batches_max < 1 or self.replay_files_per_s < 0:
            raise InvalidSetting("a limit of journals is negative", help="held_batches_max is 1 or more.")
