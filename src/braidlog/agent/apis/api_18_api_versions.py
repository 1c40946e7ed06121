"""ApiVersions: what this agent speaks. The first request of every client, so it must be understood in any version."""

from collections.abc import Mapping

from braidlog.objects.store import Bytes
from braidlog.wire.api_versions import (
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
    api_keys_of,
    write_api_versions_response,
)
from braidlog.wire.header import RequestHeader, response_header

KEY = 18
VERSIONS = range(5)


FEATURES = {"group.version": (0, 1), "transaction.version": (0, 2)}
"""What of Kafka's optional behaviour clients may count on: each feature's versions, of which the newest is in use."""


def respond(header: RequestHeader, apis: Mapping[int, range]) -> list[Bytes]:
    """Answered without looking into the body: there is nothing in it that changes the answer, and a client with a newer
    version than ours must get one that it can read."""
    response = ApiVersionsResponse(
        api_keys_of(apis),
        supported_features=[SupportedFeature(name, *versions) for name, versions in FEATURES.items()],
        finalized_features_epoch=0,
        finalized_features=[FinalizedFeature(name, newest, newest) for name, (_, newest) in FEATURES.items()],
    )
    body = write_api_versions_response(header.api_version, response)
    return [response_header(header.correlation_id, flexible=False), body]
