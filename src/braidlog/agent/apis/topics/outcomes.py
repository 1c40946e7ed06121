"""Outcomes for the topics of a request that the control plane did not answer."""

from collections.abc import Iterable

from braidlog.agent.apis.shared import admin_failure
from braidlog.control.interface import TopicOutcome
from braidlog.runtime.errors import BraidError


def failed_outcomes(names: Iterable[str], error: BraidError) -> dict[str, TopicOutcome]:
    """Return the same failure for each topic, by name."""
    code = admin_failure(error)
    return {name: TopicOutcome(name, code, str(error)) for name in names}
