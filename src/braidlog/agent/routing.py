"""The stage that parts what is journaled from what is not: neither waits for the other."""

from collections.abc import Callable

from braidlog.writing.request import WriteRequest
from braidlog.writing.stage import RequestStage


class Routing:
    def __init__(self, classic: RequestStage, journaled: RequestStage, is_journaled: Callable[[bytes], bool]) -> None:
        """`is_journaled` is asked for every request, by topic id."""
        self._classic = classic
        self._journaled = journaled
        self._is_journaled = is_journaled

    def submit(self, request: WriteRequest) -> None:
        (self._journaled if self._is_journaled(request.topic_id) else self._classic).submit(request)
