"""Journals: files that were acknowledged before they were sequenced, and how each of them finds its way into the log.

A sequence is a folder of files, named by the incarnation of the agent that writes it and a number; a file's place in it
is its slot. Agents commit what they have journaled at once (the fast path). What was not committed is found by scans
and committed by replays (the slow path), which any agent may do.
"""

from typing import Protocol

import msgspec

from braidlog.control.interface.agents import Done
from braidlog.control.interface.base import Message


class SequenceName(Message, frozen=True, gc=False):
    incarnation: str
    number: int


class ScanTask(Message, frozen=True):
    """Find the sequences that the control plane does not know of.

    List `journal/` one key at a time: where the key's number is below `known_below` of its incarnation, go on behind
    `journal/<incarnation>/<known_below>/`, and else report the sequence and go on behind all its slots. So there are as
    many lists as incarnations and unknown sequences, however many files were sequenced.
    """

    known_below: dict[str, int]
    """By incarnation: of the sequences below this number all are known, or are no more."""


class ScanDone(Message, frozen=True):
    """All that was found, also what is known."""

    sequences: list[SequenceName]


class ReplayTask(Message, frozen=True):
    """Commit the files of one sequence that were not sequenced: list it from `watermark` on, leave out the slots that
    are `known`, read the tail of each other file, and commit it with `replayed` set.

    To seal it, first put a fence into every empty one of the slots [lowest empty, lowest empty + SLOTS_IN_FLIGHT_MAX),
    below SLOTS_PER_SEQUENCE_MAX, then list again, and commit what has come meanwhile. A slot is empty that is neither
    below the watermark nor known, and that no file was listed for.
    """

    incarnation: str
    number: int
    watermark: int
    """All slots below are sequenced or fenced."""
    known: list[tuple[int, int]]
    """So are these half-open ranges of slots above it."""
    seal: bool


class ReplayDone(Message, frozen=True):
    """Told once every file that was listed is committed. A file that is a fence need not be."""

    incarnation: str
    number: int
    sealed: bool
    listed: list[int]
    """Slots that the last listing had, fences included."""
    fenced: list[int] = msgspec.field(default_factory=list)
    """Those of them that are fences, whoever has put them there."""


class RequestScan(Message, frozen=True):
    """Somebody has journaled while the control plane was away, or wants to be certain that nobody has."""

    incarnation: str


class ScanRequested(Message, frozen=True):
    scan: int
    """When `HeartbeatAnswer.scans_replayed` is as high, all that was journaled before the request is sequenced."""


class EndSequence(Message, frozen=True):
    """The writer of a sequence has written the slots [0, slot_count) and will write no other: it needs no seal."""

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
    """open: files are still written; replaying: it is being looked through; complete: all is sequenced, and is kept
    until it is merged away."""
    watermark: int
    sequenced_count: int
    end_slot: int
    """How many slots it has; -1: nobody knows yet."""
    opened_ms: int
    """When the control plane first heard of it."""
    is_live: bool
    """Whether its agent is there."""


class JournalStatistics(Message, frozen=True):
    """Counts are since the control plane has started; the rest is as it is now."""

    fast_files: int
    slow_files: int
    """Sequenced because a replay found them."""
    duplicate_batches: int
    late_batches: int
    """Appended behind batches that follow them: their gap had been given up, or nobody knew of it."""
    older_epoch_batches: int
    """Appended behind batches of a later epoch of their producer."""
    dropped_batches: int
    """Of topics that were deleted meanwhile."""
    gaps_given_up: int
    held_batches: int
    """That wait for what comes before them."""
    open_sequences: int
    unreplayed_files: int
    """Slots that are known to be missing below others."""
    complete_sequences: int
    closed_sequences: int
    scans_requested: int
    scans_replayed: int
    replayed_ms: int
    """All that was journaled before this time is sequenced; 0: nobody knows."""


class JournalDescription(Message, frozen=True):
    statistics: JournalStatistics
    sequences: list[SequenceDescription]
    """Those that are not complete first, the oldest first."""
    oldest_held_ms: int = -1
    """Since when the oldest held batch has waited; -1: none waits."""


class JournalPlane(Protocol):
    async def request_scan(self, request: RequestScan, *, timeout_s: float | None = None) -> ScanRequested: ...
    async def end_sequence(self, request: EndSequence, *, timeout_s: float | None = None) -> Done: ...
    async def describe_journals(
        self, request: DescribeJournals, *, timeout_s: float | None = None
    ) -> JournalDescription: ...
