"""The seams of the write path. A stage knows only the next one, so stages are added and replaced one at a time.

The agent composes them as `batch → order → upload → sequence`. What arrives is a `WriteRequest`; the batcher turns many
of them into a `Draft`. `submit` is synchronous on purpose: a request's place in the order is taken when it arrives,
never after an await.
"""

from typing import Protocol

from braidlog.writing.request import Draft, WriteRequest


class RequestStage(Protocol):
    """Takes single requests. `on_done` is never called before `submit` has returned."""

    def submit(self, request: WriteRequest) -> None: ...


class DraftStage(Protocol):
    """Takes whole drafts. Whatever happens to a draft, `Draft.settle` or `Draft.fail` is called exactly once."""

    def submit(self, draft: Draft) -> None: ...
