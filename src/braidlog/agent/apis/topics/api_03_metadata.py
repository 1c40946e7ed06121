"""Metadata: lists topics, and the agents to ask for them."""

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.shared import (
    VIEW_WAIT_S_MAX,
    cluster_operations,
    topic_operations,
    wait_until_visible,
)
from braidlog.agent.apis.topics.services import TopicServices
from braidlog.agent.cluster.placement import places_of, zone_of_client
from braidlog.agent.cluster.view import Place, TopicView
from braidlog.agent.connections.connection import LARGE_ANSWER_BYTES
from braidlog.agent.connections.response_slot import ResponseSlot
from braidlog.agent.ripcord.reachability import Reachability
from braidlog.configs.names import reason_against_topic_name
from braidlog.configs.topic import effective_cluster_settings
from braidlog.control.interface import CreateTopics, NewTopic
from braidlog.runtime.errors import BraidError
from braidlog.runtime.turns import SLICE_LENGTH, Turns
from braidlog.security.acls import CREATE, DESCRIBE
from braidlog.security.rights import Rights
from braidlog.wire import metadata as wire_metadata
from braidlog.wire.header import RequestHeader
from braidlog.wire.metadata import (
    MetadataBroker,
    MetadataPartition,
    MetadataRequest,
    MetadataResponse,
    MetadataTopic,
    MetadataWriter,
)
from braidlog.wire.primitives import NO_TOPIC_ID

KEY = wire_metadata.KEY
VERSIONS = wire_metadata.VERSIONS


CACHE_BYTES_MAX = 16 * 1024 * 1024
PARTITION_BYTES = 64
"""Roughly the size of a partition in an answer."""


class Metadata:
    """Answers Metadata requests in slices, and caches the bytes of each topic.

    The bytes are kept until the catalog changes.
    """

    def __init__(self, services: TopicServices, reachability: Reachability, turns: Turns) -> None:
        self._services = services
        self._reachability = reachability
        self._view = services.view
        self._turns = turns
        self._written: dict[tuple[bytes, int, str], bytes] = {}
        """The bytes of topics, without their tails, by topic id, version and zone."""
        self._written_bytes = 0
        self._catalog_changes = -1

    async def answer(self, header: RequestHeader, request: MetadataRequest, slot: ResponseSlot) -> bytes:
        rights = slot.connection.rights
        missing = await self._create_missing(request, rights) if request.topics else {}
        topics = await self._wanted(request, missing, rights)
        answer_bytes = 0
        async for topic in self._turns.each(topics):
            answer_bytes += PARTITION_BYTES * (1 + (len(topic.partitions) if isinstance(topic, TopicView) else 0))
        if answer_bytes > LARGE_ANSWER_BYTES:
            await slot.take_room(answer_bytes)
        view, version = self._view, header.api_version
        brokers = [
            MetadataBroker(info.node_id, *info.address_for(slot.connection.listener), info.zone or None)
            for info in view.agents.values()
        ]
        operations_told = request.include_topic_authorized_operations
        response = MetadataResponse(
            brokers,
            (),
            view.cluster_id,
            view.controller_id,
            cluster_authorized_operations=cluster_operations(
                rights, told=request.include_cluster_authorized_operations
            ),
        )
        zone = zone_of_client(header.client_id)
        if all(info.zone != zone for info in view.agents.values()):
            zone = ""  # the same as no zone, and clients may name any number of such
        writer = MetadataWriter(version)
        parts = [writer.head(response, len(topics))]
        async for topic in self._turns.each(topics):
            if isinstance(topic, TopicView):
                name = topic.info.name
                parts.append(await self._write(topic, version, zone))
            else:
                name = topic.name or ""
                slot.count_error(KEY, topic.error_code)
                parts.append(writer.topic_head(topic, 0))
            parts.append(writer.topic_tail(topic_operations(rights, name, told=operations_told and name != "")))
        parts.append(writer.tail(response))
        return b"".join(parts)

    async def _create_missing(self, request: MetadataRequest, rights: Rights) -> dict[str, int]:
        """Create topics that were asked for by name and do not exist, if that is allowed.

        Returns the error of each.
        """
        view, settings, turns = self._view, self._services.settings, self._turns
        names = {
            name: None
            async for name, _ in turns.each(request.topics or ())
            if name and name not in view.topics_by_name and rights.topic(DESCRIBE, name)
        }
        if not names:
            return {}
        wanted = request.allow_auto_topic_creation and settings.auto_create_topics_enable
        if not wanted or not effective_cluster_settings(view.cluster_configs).auto_create_topics_enable:
            if self._reachability.is_away:  # they may exist by now
                return dict.fromkeys(names, int(ErrorCode.leader_not_available))
            code = int(ErrorCode.invalid_topic_exception)
            return {name: code async for name in turns.each(names) if reason_against_topic_name(name) is not None}
        may_create_all = rights.cluster(CREATE)
        denied = [name for name in names if not may_create_all and not rights.topic(CREATE, name)]
        refused = dict.fromkeys(denied, int(ErrorCode.topic_authorization_failed))
        names = {name: None for name in names if name not in refused}
        if not names:
            return refused
        create = CreateTopics([NewTopic(name, -1) for name in names])
        try:
            answer = await self._services.control.create_topics(create, timeout_s=settings.commit_timeout_ms / 1000)
        except BraidError:
            return refused | dict.fromkeys(names, int(ErrorCode.leader_not_available))
        invalid = ErrorCode.invalid_topic_exception
        codes = {each.name: each.error_code for each in answer.outcomes if each.error_code == invalid}
        created = [name for name in names if name not in codes]
        await wait_until_visible(view, lambda: all(name in view.topics_by_name for name in created), VIEW_WAIT_S_MAX)
        unseen = (name for name in created if name not in view.topics_by_name)
        return refused | codes | dict.fromkeys(unseen, int(ErrorCode.leader_not_available))

    async def _wanted(
        self, request: MetadataRequest, missing: dict[str, int], rights: Rights
    ) -> list[TopicView | MetadataTopic]:
        """The topics that were asked for, each once, or their errors.

        If all were asked for, those that the client may not see are left out.
        """
        view = self._view
        if request.topics is None:
            if not rights.is_limited:
                return list(view.topics_by_name.values())
            everything = list(view.topics_by_name.items())
            return [topic async for name, topic in self._turns.each(everything) if rights.topic(DESCRIBE, name)]
        wanted: dict[str | bytes, TopicView | MetadataTopic] = {}
        async for name, topic_id in self._turns.each(request.topics):
            by_id = topic_id != NO_TOPIC_ID and not name
            topic = view.topics_by_id.get(topic_id) if by_id else view.topics_by_name.get(name or "")
            seen_name = topic.info.name if topic is not None else name
            if seen_name and not rights.topic(DESCRIBE, seen_name):
                # Ids are no secret, but which name has which id is one.
                named = (None, topic_id) if by_id else (name, NO_TOPIC_ID)
                wanted[named[0] or topic_id] = MetadataTopic(*named, error_code=ErrorCode.topic_authorization_failed)
            elif topic is not None:
                wanted[topic.info.name] = topic
            elif by_id:
                wanted[topic_id] = MetadataTopic(None, topic_id, error_code=ErrorCode.unknown_topic_id)
            else:
                code = missing.get(name or "", ErrorCode.unknown_topic_or_partition)
                wanted[name or ""] = MetadataTopic(name, error_code=code)
        return list(wanted.values())

    async def _write(self, topic: TopicView, version: int, zone: str) -> bytes:
        view = self._view
        key = (topic.info.topic_id, version, zone)
        if self._catalog_changes == view.catalog_changes and (written := self._written.get(key)) is not None:
            return written
        catalog_changes = view.catalog_changes
        writer = MetadataWriter(version)
        named = MetadataTopic(topic.info.name, topic.info.topic_id, is_internal=topic.is_internal)
        places = places_of(view, topic, zone)
        parts = [writer.topic_head(named, len(places))]
        for start in range(0, len(places), SLICE_LENGTH):
            await self._turns.wait()
            slice_of = places[start : start + SLICE_LENGTH]
            parts.append(
                writer.partitions(
                    _describe(index, place, topic.partitions[index].leader_epoch)
                    for index, place in enumerate(slice_of, start)
                )
            )
        written = b"".join(parts)
        # The topic was looked up before the request waited for room. The view may have a newer one.
        if catalog_changes == view.catalog_changes and view.topics_by_id.get(topic.info.topic_id) is topic:
            self._keep(key, written)
        return written

    def _keep(self, key: tuple[bytes, int, str], written: bytes) -> None:
        catalog_changes = self._view.catalog_changes
        if self._catalog_changes != catalog_changes or self._written_bytes + len(written) > CACHE_BYTES_MAX:
            self._written, self._written_bytes, self._catalog_changes = {}, 0, catalog_changes
        self._written[key] = written
        self._written_bytes += len(written)


def _describe(index: int, place: Place, leader_epoch: int) -> MetadataPartition:
    if place.leader < 0:
        return MetadataPartition(index, -1, error_code=ErrorCode.leader_not_available, leader_epoch=-1)
    return MetadataPartition(index, place.leader, place.replicas, place.live, place.offline, leader_epoch)
