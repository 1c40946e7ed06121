"""ApiVersions, versions 0 to 4: the first thing that a client asks.

A client asks before it knows what the broker speaks. The response header has version 0 whatever the body's version, and
a request of a version that the broker does not know is answered in version 0 with an error and the versions that it
does know.
"""

from collections.abc import Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from braidlog.wire.header import API_VERSIONS_KEY
from braidlog.wire.primitives import (
    count_of,
    pack_i16,
    pack_i32,
    pack_i64,
    string,
    tags,
)

KEY = API_VERSIONS_KEY
VERSIONS = range(5)

_FLEXIBLE_FROM = 3
_API = Struct(">hhh")
_RANGE = Struct(">hhB")


class ApiVersion(NamedTuple):
    api_key: int
    version_min: int
    version_max: int
    """Inclusive, as on the wire."""


class SupportedFeature(NamedTuple):
    name: str
    version_min: int
    version_max: int


class FinalizedFeature(NamedTuple):
    name: str
    level_max: int
    level_min: int


class ApiVersionsResponse(NamedTuple):
    api_keys: Sequence[ApiVersion]
    error_code: int = 0
    throttle_time_ms: int = 0
    supported_features: Sequence[SupportedFeature] = ()
    finalized_features_epoch: int = -1
    finalized_features: Sequence[FinalizedFeature] = ()


def api_keys_of(apis: Mapping[int, range]) -> list[ApiVersion]:
    """Return each API key with its range of versions, as the response lists them."""
    return [ApiVersion(key, versions.start, versions.stop - 1) for key, versions in sorted(apis.items())]


def write_api_versions_response(version: int, response: ApiVersionsResponse) -> bytes:
    """Write the response's body, for any version that a client may have asked for."""
    if version not in VERSIONS:
        version = 0
        response = response._replace(error_code=ErrorCode.unsupported_version)
    flexible = version >= _FLEXIBLE_FROM
    parts = [pack_i16(response.error_code), count_of(len(response.api_keys), flexible)]
    for api in response.api_keys:
        parts.append(_API.pack(*api))
        if flexible:
            parts.append(b"\x00")
    if version >= 1:
        parts.append(pack_i32(response.throttle_time_ms))
    if flexible:
        parts.append(tags(_feature_tags(version, response)))
    return b"".join(parts)


def _feature_tags(version: int, response: ApiVersionsResponse) -> list[tuple[int, bytes]]:
    supported = response.supported_features
    if version < 4:
        # Clients of version 3 take a minimum of 0 for an error.
        supported = [feature for feature in supported if feature.version_min > 0]
    fields: list[tuple[int, bytes]] = []
    if supported:
        fields.append((0, _features(supported)))
    if response.finalized_features_epoch != -1:
        fields.append((1, pack_i64(response.finalized_features_epoch)))
    if response.finalized_features:
        fields.append((2, _features(response.finalized_features)))
    return fields


def _features(features: Sequence[SupportedFeature] | Sequence[FinalizedFeature]) -> bytes:
    parts = [count_of(len(features), True)]
    for name, first, second in features:
        parts += (string(name, True), _RANGE.pack(first, second, 0))
    return b"".join(parts)
