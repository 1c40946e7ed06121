"""Hints by which Spark runs reduce tasks in the zone of their partition. Pure.

Spark prefers to run a reduce task on hosts that hold at least a fifth of its input, which here are notifications. So a
map task that runs in the zone of a partition sends it a hint: a notification of nothing, with a long key. On the hosts
of that zone there is then more to fetch than on all others together. Readers drop hints. Where Spark does not look at
sizes (with 1,000 partitions or more, or without spark.shuffle.reduceLocality.enabled), they change nothing.
"""

from collections.abc import Iterable, Mapping, Sequence

from braidlog.cache.members import ranked
from braidlog.spark.shuffle.notification import Notification

HINTED_NODES_MAX = 2
"""Nodes of a zone that attract a partition. Were they all, none of many would hold a fifth."""
WEIGHT_MIN = 32
"""How many times as large as a task's notifications its hint is, at least: more than all tasks of other zones."""
WEIGHT_PER_NODE = 4
NOTIFICATION_BYTES = 150
"""About as large is a notification with its key."""
HINTS_BYTES_MAX = 64 * 1024
HINTS_SHARE_MAX = 0.01
"""All hints of a task are not more than this share of the bytes it stored, or `HINTS_BYTES_MAX`."""
HINT_BYTES_MIN = 256
PARTITIONS_MAX = 1000
"""Spark looks at sizes only below this many map tasks and partitions."""
_HINT = -1


def is_hint(notification: Notification) -> bool:
    return notification.length == _HINT


def hinted_partitions(zone_of_partition: Sequence[str], zone: str, name: str, zone_names: Iterable[str]) -> list[int]:
    """Return the partitions that a node attracts, of all of its zone."""
    names = list(zone_names)
    own = [partition for partition, each in enumerate(zone_of_partition) if each == zone]
    if len(own) == len(zone_of_partition) or len(zone_of_partition) >= PARTITIONS_MAX:
        return []
    if name not in names or len(names) <= HINTED_NODES_MAX:
        return own
    return [partition for partition in own if name in ranked(str(partition), names)[:HINTED_NODES_MAX]]


def hint_bytes(partitions: Sequence[int], written: Mapping[int, int], stored_bytes: int, node_count: int) -> list[int]:
    """Return the size of each partition's hint.

    `written` counts the task's notifications by partition.
    """
    if not partitions:
        return []
    weight = max(WEIGHT_MIN, WEIGHT_PER_NODE * node_count)
    limit_bytes = max(HINTS_BYTES_MAX, int(HINTS_SHARE_MAX * stored_bytes)) // len(partitions)
    return [
        max(HINT_BYTES_MIN, min(limit_bytes, weight * NOTIFICATION_BYTES * max(1, written.get(partition, 0))))
        for partition in partitions
    ]


def hint(partition: int, text: str, zone: str) -> Notification:
    """Make a hint of about the size of the text, which must not be compressible."""
    return Notification(partition, text, _HINT, _HINT, 0, 0, 0, zone)
