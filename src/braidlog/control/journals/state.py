"""Everything that the control plane knows of journals.

The sequencer shares it with those who have journals replayed.
"""

from dataclasses import dataclass

from braidlog.control.journals.backlog import JournalBacklog
from braidlog.control.journals.held_batches import HeldBatches
from braidlog.control.journals.sequences import JournalSequences


@dataclass(frozen=True, slots=True)
class JournalState:
    sequences: JournalSequences
    held: HeldBatches
    backlog: JournalBacklog
