"""Tasks that read and write an S3 bucket. What Spark does with them is the same wherever the objects are."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.cluster import Cluster
from tests.spark.log_driver import QUICK_SETTINGS, Braid
from tests.spark.readers import batch_reader, read

from braidlog.spark.errors import JobError
from braidlog.spark.link import link_to
from braidlog.spark.options import write_options
from braidlog.spark.sink.uploader import TaskUploader
from braidlog.spark.sink.writers import TaskResult, commit_results, lease_name


@pytest.fixture
def braid_on_s3(seaweed_url: str, tmp_path: Path) -> Iterator[Braid]:
    with Cluster(tmp_path / "cluster", store_url=seaweed_url, settings=QUICK_SETTINGS) as cluster:
        yield Braid.start(cluster)


def write(braid: Braid, topic: str, values: list[str], **options: str) -> None:
    """What a task does, and then the driver."""
    chosen = write_options({**braid.options, **options, "topic": topic})
    uploader = TaskUploader(link_to(chosen.address), chosen, lease_name("job", 0), turn=0)
    uploaded = uploader.upload([pa.record_batch({"value": values})])
    commit_results(chosen, [TaskResult("job", 0, uploaded.objects, uploaded.record_count)])


@pytest.mark.slow
def test_objects_in_a_bucket(braid_on_s3: Braid, monkeypatch: pytest.MonkeyPatch) -> None:
    braid = braid_on_s3
    topic = braid.new_topic(1, prefix="bucket")
    braid.produce(topic, [{"value": f"v{i}"} for i in range(20)])
    store = braid.cluster.store_url
    write(braid, topic, ["w0", "w1"], **{"braidlog.store": store})
    reader = batch_reader(braid, subscribe=topic, **{"braidlog.store": store})
    expected = [*(f"v{i}".encode() for i in range(20)), b"w0", b"w1"]
    assert [value for _, value in read(reader, reader.partitions())] == expected
    assert [seen.value for seen in braid.read(topic)] == expected

    # The control plane tells the URL without credentials: without any, the store says no, and so does the job.
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    without = batch_reader(braid, subscribe=topic)
    with pytest.raises(JobError):
        read(without, without.partitions())
