"""The states of a consumer group, of either protocol."""

from enum import Enum


class GroupState(Enum):
    """The values are the names that Kafka's clients know."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"
