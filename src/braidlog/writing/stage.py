"""The seams of the write path.

A stage knows only the next one, so stages are added and replaced one at a time.

`writing.path` has the whole picture. A `WriteRequest` goes forward through request stages; the batcher turns many of
them into a `Draft`, which goes forward through draft stages. The result of each request comes back through result
stages.

`submit` is synchronous on purpose: a request's position in the order is taken when it arrives, never after an await.
"""

from typing import Protocol

from braidlog.writing.request import Draft, WriteRequest


class RequestStage(Protocol):
    """Takes single requests. A result never comes back before `submit` has returned."""

    def submit(self, request: WriteRequest) -> None: ...


class DraftStage(Protocol):
    """Takes whole drafts.

    Whatever happens to a draft, `Draft.settle` or `Draft.fail` is called exactly once.
    """

    def submit(self, draft: Draft) -> None: ...


class ResultStage(Protocol):
    """Sees results on their way back to the client, and may change or delay them."""

    def answered(self, request: WriteRequest) -> None:
        """Take a request whose result is known, and pass it on to the next stage.

        The stages are those on the way back.
        """
        ...
