"""Measures Kafka requests: how long they took, and the errors in their answers."""

from collections.abc import Iterable, Iterator

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map
from prometheus_client.core import CounterMetricFamily, Metric

from braidlog.runtime.tally import Tally, histogram


class RequestMeters:
    """Counts in plain integers by API key. The hot path only adds to them."""

    def __init__(self, api_keys: Iterable[int]) -> None:
        self.seconds = {key: Tally() for key in api_keys}
        """The time from a request's arrival until its answer is sent. For a fetch it includes the wait for records."""
        self._errors: dict[tuple[int, int], int] = {}

    def count_error(self, api_key: int, code: int, count: int = 1) -> None:
        self._errors[api_key, code] = self._errors.get((api_key, code), 0) + count

    def collect(self) -> Iterator[Metric]:
        yield histogram(
            "braidlog_agent_request_seconds",
            "How long Kafka requests took, from arrival to answer, by API.",
            {api_key_map[key]: tally for key, tally in self.seconds.items()},
            "api",
        )
        errors = CounterMetricFamily(
            "braidlog_agent_request_errors",
            "Error codes in answers, by API: one for each partition, topic or group that has one.",
            labels=["api", "error"],
        )
        for (key, code), count in self._errors.items():
            errors.add_metric([api_key_map[key], _name(code)], count)
        yield errors


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
