"""Fixtures for all rooms."""

import os
from collections.abc import Iterator, MutableMapping
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import structlog
import structlog.testing
from hypothesis import HealthCheck, settings
from tests.fakes import FakeClock
from tests.seaweed import running_seaweed

from braidlog.runtime.entropy import SeededEntropy

# How long it takes to make or to try examples depends on what else the machine does: that is no finding.
# In CI the examples are the same each time: a change is not refused for what chance finds.
settings.register_profile(
    "braidlog",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="CI" in os.environ,
)
settings.load_profile("braidlog")

# Spark's workers import what tests pickle, whatever folder the JVM was started in.
_ROOT = str(Path(__file__).resolve().parent.parent)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH")]))

_prefixes = count()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def entropy() -> SeededEntropy:
    return SeededEntropy(7)


@pytest.fixture
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    """What is logged, at any level, whatever tests before this one have configured."""
    before = structlog.get_config()
    structlog.reset_defaults()
    with structlog.testing.capture_logs() as captured:
        yield captured
    structlog.configure(**before)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running S3 server: the URL of its bucket. It takes about 6 seconds to start, once for all tests that ask."""
    folder: Path = tmp_path_factory.mktemp("seaweed")
    with running_seaweed(folder) as url:
        yield url


@pytest.fixture
def seaweed_url(seaweed: str) -> str:
    """The URL of an empty place in a real S3 server, for one test."""
    location, _, options = seaweed.partition("?")
    return f"{location}/test-{next(_prefixes)}?{options}"
