"""The commands, on a whole Braidlog whose own worker starts when there is something to do; with transactions."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster import Cluster
from tests.jobs.test_kills import read_topic


def braid(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "braidlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def jobs(control: str, *arguments: str) -> list[dict[str, Any]]:
    done = braid("jobs", "--control", control, "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.mark.timeout(240)
def test_compact_now_by_the_worker_that_braid_up_starts(tmp_path: Path) -> None:
    with Cluster(tmp_path, settings={"job_check_interval_s": 600}) as cluster:
        up = cluster.up(control_listen="127.0.0.1:0")
        control = str(up.facts["control"])
        admin = AdminClient({"bootstrap.servers": up.address})
        for future in admin.create_topics(
            [NewTopic("state", 1, config={"cleanup.policy": "compact"}), NewTopic("events", 1)]
        ).values():
            future.result(60)
        producer = confluent_kafka.Producer({"bootstrap.servers": up.address, "transactional.id": "writer"})
        producer.init_transactions(60)
        for number in range(6):
            producer.begin_transaction()
            for key in range(3):
                producer.produce("state", b"%d" % number, key=b"k%d" % key)
            producer.flush(60)
            if number in (2, 5):
                producer.abort_transaction(60)
            else:
                producer.commit_transaction(60)
        assert jobs(control) == []
        done = braid("compact", "state", "--now", "--control", control, "--format", "json")
        assert done.returncode == 0, done.stderr
        [job] = json.loads(done.stdout)
        assert (job["kind"], job["state"], job["subject"]) == ("compact", "done", "state/0")
        assert job["bytes_out"] < job["bytes_in"]
        # Of what was committed the newest, where it was; nothing of what was aborted; and the end can be reached.
        found = read_topic(up.address, "state", 1)[0]
        assert found == [(16, b"k0", b"4"), (17, b"k1", b"4"), (18, b"k2", b"4")]
        assert jobs(control, "--kind", "compact", "--state", "done") == [job]
        assert "compact  done   state/0" in braid("jobs", "--control", control).stdout
        refused = braid("compact", "events", "--now", "--control", control)
        assert refused.returncode != 0
        assert "does not compact" in refused.stderr
        assert braid("compact", "state", "--control", control).returncode != 0
        assert up.stop() == 0
