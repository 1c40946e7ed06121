"""Something in a history that a correct log would never have done."""

from dataclasses import dataclass
from typing import Literal

from braidlog.sim.history import AnyOperation

Kind = Literal[
    "aborted-read",
    "dead-producer",
    "deleted-key-came-back",
    "double-assignment",
    "double-ownership",
    "duplicate",
    "external-consistency",
    "foreign-commit",
    "group-offset-went-back",
    "inconsistent-offsets",
    "lost-write",
    "missing-final-read",
    "non-monotonic-poll",
    "offset-gap",
    "order-within-connection",
    "order-within-producer",
    "orphaned-partition",
    "phantom",
    "skipped-poll",
    "stale-list",
    "stuck-transaction",
    "torn-transaction",
    "uncommitted-offset",
]


@dataclass(frozen=True, slots=True)
class Anomaly:
    kind: Kind
    message: str
    topic: str
    partition: int
    time_s: float
    """The earliest time at which it could be noticed."""
    operations: tuple[AnyOperation, ...]
    """The operations that contradict each other, or the one that contradicts the rules."""
    offset: int = -1
    """The offset that it is about; -1: none."""
