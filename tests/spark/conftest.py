"""One Spark session and one Braidlog for all tests that do not break either."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.cluster import Cluster, running_clusters
from tests.spark.log_driver import QUICK_SETTINGS, Braid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

os.environ["TZ"] = "UTC"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed test shows what the processes of its clusters said."""
    report = yield
    if report.failed:
        for cluster in running_clusters():
            for name, text in cluster.logs():
                report.sections.append((f"{cluster.folder.name}/{name}.log", text))
    return report


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from braidlog.spark import create_session

    session = create_session(
        "local[2]",
        app_name="tests",
        quick=True,
        progress=False,
        config={"spark.sql.shuffle.partitions": "2", "spark.sql.streaming.noDataMicroBatches.enabled": "false"},
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def braid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Braid]:
    with Cluster(tmp_path_factory.mktemp("braid"), settings=QUICK_SETTINGS) as cluster:
        yield Braid.start(cluster)


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, to be killed at will. Nothing runs yet."""
    with Cluster(tmp_path / "cluster", settings=QUICK_SETTINGS) as cluster:
        yield cluster
