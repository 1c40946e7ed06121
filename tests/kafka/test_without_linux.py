"""An agent of two shards, as real processes, on a machine that has nothing of what only Linux has.

It stands for macOS, of which README speaks, as far as one can be had here: every process starts without those calls.
"""

import os
from pathlib import Path

import pytest
from tests.cluster import Cluster
from tests.kafka.clients import CLIENTS, Record

ONLY_LINUX = {
    "os": [
        "O_DIRECT",
        "O_TMPFILE",
        "copy_file_range",
        "eventfd",
        "eventfd_read",
        "eventfd_write",
        "memfd_create",
        "pidfd_open",
        "posix_fadvise",
        "posix_fallocate",
        "preadv",
        "pwritev",
        "sched_getaffinity",
        "sched_setaffinity",
        "splice",
    ],
    "mmap": ["MADV_HUGEPAGE", "MAP_POPULATE"],
    "select": ["epoll", "EPOLLIN"],
    "signal": ["pidfd_send_signal", "sigtimedwait"],
    "socket": ["TCP_CONGESTION", "TCP_CORK", "TCP_QUICKACK", "TCP_USER_TIMEOUT", "SO_PEERCRED"],
}
"""Names that Python has on Linux and not (or not always) on macOS."""

TAKE_AWAY = f"""
import importlib, os
for module, names in {ONLY_LINUX!r}.items():
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)
open(os.path.join(os.path.dirname(__file__), str(os.getpid())), "w").close()
"""


def test_two_shards_serve_without_the_calls_of_linux(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    customized = tmp_path / "customized"
    customized.mkdir()
    (customized / "sitecustomize.py").write_text(TAKE_AWAY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(customized), os.environ.get("PYTHONPATH", "")]).rstrip(":"))
    agent = cluster.agent(control=cluster.control(), shards=2)
    assert len(list(customized.glob("[0-9]*"))) >= 4, "control plane, supervisor and two shards"
    client = CLIENTS["confluent"]
    records = [Record(b"%d" % number) for number in range(20)]
    client.produce(agent.address, "anywhere", records)
    assert sorted(found.value for found in client.consume(agent.address, "anywhere", len(records))) == sorted(
        record.value for record in records
    )
