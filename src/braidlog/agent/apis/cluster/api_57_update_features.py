"""UpdateFeatures: every feature has its newest version here, and keeps it."""

from typing import Any

from kio.schema.errors import ErrorCode

from braidlog.agent.apis.cluster.api_18_api_versions import FEATURES
from braidlog.agent.apis.cluster.services import ClusterContext
from braidlog.agent.apis.shared import CLUSTER_DENIED, NO_THROTTLE
from braidlog.security.acls import ALTER

KEY = 57
VERSIONS = range(3)

UPGRADE = 1


async def handle(request: Any, context: ClusterContext) -> Any:
    if not context.rights.cluster(ALTER):
        return context.answer(
            "UpdateFeaturesResponse",
            throttle_time=NO_THROTTLE,
            error_code=ErrorCode.cluster_authorization_failed,
            error_message=CLUSTER_DENIED,
            results=(),
        )
    problem = next((reason for update in request.feature_updates if (reason := _reason_against(update))), None)
    code = ErrorCode.none if problem is None else ErrorCode.invalid_update_version
    results: tuple[Any, ...] = ()
    if problem is None and context.version < 2:  # later versions have no such class
        results = tuple(
            context.answer(
                "UpdatableFeatureResult", feature=update.feature, error_code=ErrorCode.none, error_message="NONE"
            )
            for update in request.feature_updates
        )
    return context.answer(
        "UpdateFeaturesResponse", throttle_time=NO_THROTTLE, error_code=code, error_message=problem, results=results
    )


def _reason_against(update: Any) -> str | None:
    reason = _reason_against_level(update.feature, update.max_version_level, _may_lower(update))
    if reason is None:
        return None
    return (
        "The update failed for all features since the following feature had an error: "
        f"Invalid update version {update.max_version_level} for feature {update.feature}. {reason}"
    )


def _may_lower(update: Any) -> bool:
    """Whether the update may lower a version.

    Version 0 has a flag for it, later ones a type.
    """
    return bool(getattr(update, "allow_downgrade", False)) or getattr(update, "upgrade_type", UPGRADE) != UPGRADE


def _reason_against_level(feature: str, level: int, may_lower: bool) -> str | None:
    if level < 0:
        return "A feature version cannot be less than 0."
    if feature not in FEATURES:
        return "Braidlog does not support this feature."
    oldest, newest = FEATURES[feature]
    if not oldest <= level <= newest:
        return f"Braidlog only supports versions {oldest}-{newest}"
    if level < newest:
        return (
            "Braidlog always has the newest version of a feature."
            if may_lower
            else "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
            "unsafe downgrade."
        )
    return None
