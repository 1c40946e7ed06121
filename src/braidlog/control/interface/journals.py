"""Journals: files that were acknowledged before they were sequenced.

The types here say how each file gets into the log.

A journal sequence is a folder of files, named by the incarnation of the agent that writes it and by a number. The place
of a file in it is its slot. Agents commit their journal files at once (the fast path). Files that were not committed
are found by scans and committed by replays (the slow path), which any agent may do.
"""

from typing import Protocol

import msgspec

from braidlog.control.interface.agents import Done
from braidlog.control.interface.base import Message

WAITS_FOR_BATCH = "batch"
"""All earlier journals were replayed: the missing batch is on its way, or does not exist."""
WAITS_FOR_JOURNALS = "journals"
"""The missing batch may be in a journal that is not replayed yet."""


class SequenceName(Message, frozen=True, gc=False):
    incarnation: str
    number: int


class ScanTask(Message, frozen=True):
    """Find the journal sequences that the control plane does not know.

    List `journal/` one key at a time. If the key's number is below `known_below` of its incarnation, continue after
    `journal/<incarnation>/<known_below>/`. Otherwise report the sequence and continue after all its slots. So there are
    as many lists as incarnations and unknown sequences, however many files were sequenced.
    """

    known_below: dict[str, int]
    """For each incarnation, a number below which all its sequences are known or closed."""


class ScanDone(Message, frozen=True):
    """Everything that the scan found, known sequences included."""

    sequences: list[SequenceName]


class ReplayTask(Message, frozen=True):
    """Commit the unsequenced files of one journal sequence.

    List it from `watermark` on, skip the slots that are `known`, read the tail of each other file, and commit it with
    `replayed` set.

    To seal the sequence, first put a fence into every empty slot of [lowest empty, lowest empty + SLOTS_IN_FLIGHT_MAX),
    below SLOTS_PER_SEQUENCE_MAX. Then list again, and commit the files that have appeared meanwhile. A slot is empty if
    it is neither below the watermark nor known, and no file was listed for it.
    """

    incarnation: str
    number: int
    watermark: int
    """All slots below it are sequenced or fenced."""
    known: list[tuple[int, int]]
    """Half-open ranges of slots above it that are sequenced or fenced, too."""
    seal: bool


class ReplayDone(Message, frozen=True):
    """Report a replay, once every listed file is committed. Fences need not be."""

    incarnation: str
    number: int
    sealed: bool
    listed: list[int]
    """The slots of the last listing, fences included."""
    fenced: list[int] = msgspec.field(default_factory=list)
    """The listed slots that are fences, whoever has put them there."""


class RequestScan(Message, frozen=True):
    """Ask for a scan of the journals.

    There may be journals written while the control plane was away, or somebody must be certain that there are none.
    """

    incarnation: str


class ScanRequested(Message, frozen=True):
    scan: int
    """Once `HeartbeatAnswer.scans_replayed` is as high, everything journaled before the request is sequenced."""


ABANDONED = -1
"""In place of a count of slots: the writer has left the sequence, and does not know what became of a file."""


class EndSequence(Message, frozen=True):
    """End a journal sequence of the slots [0, slot_count).

    Its writer has written these slots and will write no other. It needs no seal, unless it is `ABANDONED`.
    """

    incarnation: str
    number: int
    slot_count: int


class DescribeJournals(Message, frozen=True):
    sequences_max: int = 100
    """How many sequences to list one by one."""


class SequenceDescription(Message, frozen=True):
    incarnation: str
    number: int
    state: str
    """open: files may still be written; replaying: a replay is under way; complete: everything is sequenced, and the
    files are kept until they are merged away."""
    watermark: int
    sequenced_count: int
    end_slot: int
    """How many slots it has; -1: unknown yet."""
    opened_ms: int
    """When the control plane first heard of it."""
    is_live: bool
    """Whether its agent is alive."""


class JournalStatistics(Message, frozen=True):
    """Statistics of journals.

    Counts are since the control plane has started; the rest is current.
    """

    fast_files: int
    slow_files: int
    """Files that were sequenced by a replay."""
    duplicate_batches: int
    late_batches: int
    """Batches appended behind later ones: their gap had been given up, or nobody knew of it."""
    older_epoch_batches: int
    """Batches appended behind those of a later epoch of their producer."""
    dropped_batches: int
    """Batches of topics that were deleted meanwhile."""
    gaps_given_up: int
    held_batches: int
    """Batches that wait for earlier ones."""
    open_sequences: int
    unreplayed_files: int
    """Slots that are missing below sequenced ones."""
    complete_sequences: int
    closed_sequences: int
    scans_requested: int
    scans_replayed: int
    replayed_ms: int
    """Everything journaled before this time is sequenced; 0: unknown."""


class JournalDescription(Message, frozen=True):
    statistics: JournalStatistics
    sequences: list[SequenceDescription]
    """Incomplete sequences first, the oldest first."""
    oldest_held_ms: int = -1
    """Since when the oldest held batch waits; -1: none is held."""
    held_until_ms: int = -1
    """When it is appended at the latest, if the missing batches do not arrive."""
    held_waits_for: str = ""
    """`WAITS_FOR_BATCH` or `WAITS_FOR_JOURNALS`."""
    untried_sequences: int = 0
    """Journal sequences that are not replayed yet and may have the missing batches."""


class JournalPlane(Protocol):
    async def request_scan(self, request: RequestScan, *, timeout_s: float | None = None) -> ScanRequested: ...
    async def end_sequence(self, request: EndSequence, *, timeout_s: float | None = None) -> Done: ...
    async def describe_journals(
        self, request: DescribeJournals, *, timeout_s: float | None = None
    ) -> JournalDescription: ...
