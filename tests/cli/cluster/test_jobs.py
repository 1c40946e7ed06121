"""`braid jobs` and `braid compact`."""

import pytest
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

from braidlog.cli.cluster.jobs import JobKind, JobState, compact_topic
from braidlog.cli.main import app
from braidlog.clients.errors import CommandError
from braidlog.control.interface import jobs as interface


def test_all_kinds_and_states_of_jobs_can_be_asked_for() -> None:
    assert {*JobKind} == {interface.MERGE, interface.COMPACT, interface.EXPIRE, interface.SCAN, interface.REPLAY}
    assert {*JobState} == {interface.WAITING, interface.RUNNING, interface.DONE, interface.FAILED}
    listed = CliRunner().invoke(app, ["jobs", "--help"]).stdout
    assert all(each in listed for each in (*JobKind, *JobState))


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (ErrorCode.unknown_topic_or_partition, "braid topic list"),
        (ErrorCode.policy_violation, "braid topic alter t --set cleanup.policy=compact"),
    ],
)
async def test_a_topic_that_cannot_be_compacted(code: ErrorCode, says: str) -> None:
    class Plane:
        async def request_compaction(self, request: object, *, timeout_s: float) -> interface.CompactionRequested:
            return interface.CompactionRequested(int(code), [], "no")

    with pytest.raises(CommandError) as caught:
        await compact_topic(Plane(), "t", 1.0)  # type: ignore[arg-type]
    assert says in caught.value.help
