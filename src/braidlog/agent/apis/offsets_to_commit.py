"""Reads the offsets of a commit, for OffsetCommit and TxnOffsetCommit."""

from collections.abc import Iterable
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import is_denied, topic_of, unknown_topic_code
from braidlog.agent.cluster.view import ClusterView
from braidlog.control.interface import OffsetToCommit
from braidlog.runtime.turns import Turns
from braidlog.security.acls import READ
from braidlog.security.rights import Rights

Position: TypeAlias = tuple[int, int]
"""The position of a partition in the request: that of its topic, and its own within the topic."""


async def offsets_to_commit(
    topics: Iterable[Any], view: ClusterView, turns: Turns, rights: Rights
) -> tuple[dict[Position, OffsetToCommit], dict[Position, int]]:
    """The offsets of partitions that exist, and the error codes of those that do not.

    The client must be allowed to read each topic.
    """
    offsets: dict[Position, OffsetToCommit] = {}
    codes: dict[Position, int] = {}
    for i, topic in enumerate(topics):
        known = topic_of(view, topic)
        denied = is_denied(rights, READ, topic, known)
        async for j, partition in turns.each(enumerate(topic.partitions)):
            if denied:
                codes[i, j] = ErrorCode.topic_authorization_failed
            elif known is None:
                codes[i, j] = unknown_topic_code(topic)
            elif not 0 <= partition.partition_index < len(known.partitions):
                codes[i, j] = ErrorCode.unknown_topic_or_partition
            else:
                offsets[i, j] = OffsetToCommit(
                    topic_id=known.info.topic_id,
                    partition=partition.partition_index,
                    offset=partition.committed_offset,
                    leader_epoch=getattr(partition, "committed_leader_epoch", -1),
                    metadata=partition.committed_metadata or "",
                )
    return offsets, codes
