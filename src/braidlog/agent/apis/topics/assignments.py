"""Checks replicas that a client names by hand.

CreateTopics, CreatePartitions and reassignments use it.
"""

from collections.abc import Container, Iterable, Sequence


def reason_against_assignments(assignments: Iterable[Sequence[int]], node_ids: Container[int]) -> str | None:
    """Kafka's error message about several partitions' replicas; None if valid."""
    factor: int | None = None
    for replicas in assignments:
        if reason := _reason_against(replicas, node_ids):
            return f"The manual partition assignment includes {reason}."
        if factor is not None and len(replicas) != factor:
            return (
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), but this is "
                f"not consistent with previous partitions, which have {factor} replica(s)."
            )
        factor = len(replicas)
    return None


def _reason_against(replicas: Sequence[int], node_ids: Container[int]) -> str | None:
    if not replicas:
        return "an empty replica list"
    seen: set[int] = set()
    for node_id in replicas:
        if node_id in seen:
            return f"the broker {node_id} more than once"
        seen.add(node_id)
        if node_id not in node_ids:
            return f"broker {node_id}, but no such broker is registered"
    return None
