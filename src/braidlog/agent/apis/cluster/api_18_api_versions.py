"""ApiVersions: lists the APIs and versions served.

Clients send it first, so it is understood in any version.
"""

from collections.abc import Mapping

from braidlog.objects.store import Bytes
from braidlog.wire import api_versions as wire_api_versions
from braidlog.wire.api_versions import (
    ApiVersionsResponse,
    FinalizedFeature,
    SupportedFeature,
    api_keys_of,
    write_api_versions_response,
)
from braidlog.wire.header import RequestHeader, response_header

KEY = wire_api_versions.KEY
VERSIONS = wire_api_versions.VERSIONS


FEATURES = {"group.version": (0, 1), "transaction.version": (0, 2)}
"""The versions of each of Kafka's features that are supported. The newest is in use."""


def respond(header: RequestHeader, apis: Mapping[int, range]) -> list[Bytes]:
    """Answer without reading the body, which never changes the answer.

    A client with a newer version than ours must get an answer that it can read.
    """
    response = ApiVersionsResponse(
        api_keys_of(apis),
        supported_features=[SupportedFeature(name, *versions) for name, versions in FEATURES.items()],
        finalized_features_epoch=0,
        finalized_features=[FinalizedFeature(name, newest, newest) for name, (_, newest) in FEATURES.items()],
    )
    body = write_api_versions_response(header.api_version, response)
    return [response_header(header.correlation_id, flexible=False), body]
