"""Metrics as numbers."""

import pytest

from braidlog.console.figures import Change, Sample, add_up, by_label, parse_figures, total

TEXT = """# HELP braidlog_store_requests_total Requests.
braidlog_store_requests_total{operation="put",store="main"} 10.0
braidlog_store_requests_total{operation="get",store="main"} 4.0
braidlog_upload_bytes_total{topic="a\\"b\\\\n"} 1e3
braidlog_consumer_group_lag_records{group="g"} 7
braidlog_agent_backlog_bytes NaN-ish
braidlog_agent_connections 3
"""


def test_metrics_are_parsed_as_far_as_they_are_used() -> None:
    figures = parse_figures(TEXT)
    assert total(figures, "braidlog_store_requests_total") == 14
    assert total(figures, "braidlog_store_requests_total", operation="get") == 4
    assert by_label(figures, "braidlog_upload_bytes_total", "topic") == {'a"b\\n': 1000}
    assert total(figures, "braidlog_agent_connections") == 3
    assert "braidlog_consumer_group_lag_records" not in figures
    assert "braidlog_agent_backlog_bytes" not in figures
    assert total(add_up([figures, figures]), "braidlog_agent_connections") == 6


def _sample(at_ms: int, puts: float, buckets: dict[str, float]) -> Sample:
    lines = [f'braidlog_store_requests_total{{operation="put"}} {puts}']
    lines += [f'braidlog_store_request_seconds_bucket{{le="{le}",operation="put"}} {n}' for le, n in buckets.items()]
    return Sample(at_ms, {"a:1": parse_figures("\n".join(lines))})


def test_rates_and_quantiles_are_those_between_two_samples() -> None:
    change = Change(
        _sample(0, 5, {"0.1": 5, "0.2": 5, "+Inf": 5}), _sample(2000, 25, {"0.1": 15, "0.2": 25, "+Inf": 25})
    )
    assert change.rate("braidlog_store_requests_total", operation="put") == 10
    assert change.rates_by("braidlog_store_requests_total", "operation") == {"put": 10}
    assert change.quantile("braidlog_store_request_seconds", 0.5, operation="put") == pytest.approx(0.1)
    assert change.quantile("braidlog_store_request_seconds", 0.75, operation="put") == pytest.approx(0.15)
    assert change.quantile("braidlog_store_request_seconds", 0.5, operation="get") is None


def test_a_process_that_is_new_or_restarted_has_no_rate_below_zero() -> None:
    change = Change(_sample(0, 500, {}), _sample(1000, 3, {}))
    assert change.rate("braidlog_store_requests_total") == 0
    fresh = Change(Sample(0, {}), _sample(1000, 3, {}))
    assert fresh.rate("braidlog_store_requests_total") == 0
