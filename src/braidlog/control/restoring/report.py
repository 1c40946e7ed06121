"""The report of a restore: what kept its offset, and what did not."""

import msgspec

MAY_BE_OLDER = (
    "offsets that groups committed, members of groups, and configs of groups and clients: as old as the copy",
)
MAY_REAPPEAR = ("batches that were refused after the copy was written, if their objects were not swept yet",)


class PartitionReport(msgspec.Struct, frozen=True):
    """One partition. Offsets are exclusive ends."""

    topic: str
    partition: int
    kept_end_offset: int
    """All records below it have the offset that they had."""
    gap_end_offset: int
    """Offsets from `kept_end_offset` up to here may have been told, and are never used again."""
    end_offset: int
    appended_records: int
    """How many offsets were given to records that had lost theirs."""
    aborted_records: int
    """Records of transactions that had not ended."""


class RestoreReport(msgspec.Struct, frozen=True):
    restore: int
    """The number of the restore, which is its leader epoch."""
    source: str
    is_exact: bool
    position: int
    copy_age_s: float
    """How old the copy was when the restore read it; -1: not known."""
    target: str
    is_dry_run: bool
    objects_appended: int
    journal_files_to_replay: int
    objects_rewritten: int
    objects_stale: int
    transactional_ids: int
    unreadable: list[str]
    partitions: list[PartitionReport]
    """Those whose newest records have lost their offsets."""
    damage: str = ""
    may_be_older: list[str] = []
    may_reappear: list[str] = []
