"""Commits are repeated while that may help, and producers are told to send again what is not their fault."""

from typing import cast

import pytest
from kio.schema.errors import ErrorCode
from tests.fakes import FakeClock

from braidlog.control.interface import BatchVerdict, CommitObject, ControlPlane, ExtentVerdict, ObjectVerdict
from braidlog.control.metadata.store import MetadataBusy, MetadataDamaged, MetadataFull, MetadataUnavailable
from braidlog.objects.layout import BatchEntry
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import BraidError, ControlUnavailable, DeadlineExceeded, Fenced, InvalidSetting
from braidlog.runtime.tasks import TaskGroup
from braidlog.writing.request import Draft, WriteRequest
from braidlog.writing.sequencing import Sequencing

PARTITION = (b"t" * 16, 0)
DEADLINE_S = 10.0


class FailingControl:
    """Raises these errors, one a call, and then sequences."""

    def __init__(self, errors: list[BraidError]) -> None:
        self._errors = errors
        self.commits: list[CommitObject] = []

    async def commit_object(self, request: CommitObject, *, timeout_s: float | None = None) -> ObjectVerdict:
        self.commits.append(request)
        if self._errors:
            raise self._errors.pop(0)
        return ObjectVerdict(0, [ExtentVerdict(0, [BatchVerdict(0, 40)])])


async def sequenced(control: FailingControl) -> WriteRequest:
    """Sequence a draft of one request, and return the request."""
    tasks = TaskGroup("test")
    done: list[WriteRequest] = []
    request = WriteRequest(*PARTITION, b"", BatchEntry(61, 1, 0, 0), 0, -1, done.append)
    stage = Sequencing(cast(ControlPlane, control), FakeClock(), SeededEntropy(1), deadline_s=DEADLINE_S, tasks=tasks)
    stage.submit(Draft({PARTITION: [request]}, 61, key="data/0/0000000001/abc-0000000000", packed=b"x"))
    await tasks.wait_all()
    assert done == [request]
    return request


@pytest.mark.parametrize(
    "error",
    [MetadataBusy("busy"), MetadataFull("full"), MetadataUnavailable("gone"), ControlUnavailable("away")],
    ids=lambda error: type(error).__name__,
)
async def test_what_may_succeed_later_is_tried_again(error: BraidError) -> None:
    control = FailingControl([error, DeadlineExceeded("late"), error])
    request = await sequenced(control)
    assert (request.error_code, request.base_offset) == (ErrorCode.none, 40)
    assert len(control.commits) == 4
    assert len({commit.key for commit in control.commits}) == 1


async def test_it_is_tried_again_until_the_deadline_and_no_longer() -> None:
    control = FailingControl([MetadataFull("no room") for _ in range(1000)])
    request = await sequenced(control)
    assert request.error_code == ErrorCode.not_enough_replicas_after_append
    assert 5 < len(control.commits) < 100


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Fenced("another one has taken over"), ErrorCode.not_enough_replicas_after_append),
        (MetadataDamaged("the file is corrupt"), ErrorCode.not_enough_replicas_after_append),
        (InvalidSetting("the footer makes no sense"), ErrorCode.unknown_server_error),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_repeating_cannot_mend_is_said_at_once(error: BraidError, code: ErrorCode) -> None:
    """A producer sends again all but what will always be wrong: the next control plane may take it."""
    control = FailingControl([error])
    assert (await sequenced(control)).error_code == code
    assert len(control.commits) == 1
