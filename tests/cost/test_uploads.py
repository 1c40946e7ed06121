"""What uploading costs, by arithmetic: the reference figures that the upload policies are judged by."""

from math import inf

import pytest
from bench._scheduler_model import AgentModel, Phase, run_trace
from tests.cost.uploads import streams_usd_month, upload_period_s

from braidlog.cost.prices import FREE, S3_EXPRESS, S3_STANDARD
from braidlog.scheduling.policy import policy_named

INTERVAL_S = 0.2
SHARDS = 32
AGENTS = 5
REQUESTS_PER_S = 3_200.0
"""To one agent: a hundred for each shard."""

ONE_STREAM_S = upload_period_s(interval_s=INTERVAL_S, requests_per_s=REQUESTS_PER_S)
STREAM_OF_A_SHARD_S = upload_period_s(interval_s=INTERVAL_S, requests_per_s=REQUESTS_PER_S / SHARDS)


def test_an_upload_every_200_ms_is_65_usd_a_month() -> None:
    assert streams_usd_month(S3_STANDARD, streams=1, period_s=INTERVAL_S) == pytest.approx(65, rel=0.05)
    assert streams_usd_month(S3_STANDARD, streams=1, period_s=ONE_STREAM_S) == pytest.approx(65, rel=0.05)


def test_a_stream_for_each_of_32_shards_is_2000_usd_a_month() -> None:
    assert streams_usd_month(S3_STANDARD, streams=SHARDS, period_s=STREAM_OF_A_SHARD_S) == pytest.approx(2000, rel=0.05)


def test_five_agents_cost_120000_usd_a_year_or_3750() -> None:
    by_shard = streams_usd_month(S3_STANDARD, streams=AGENTS * SHARDS, period_s=STREAM_OF_A_SHARD_S)
    by_agent = streams_usd_month(S3_STANDARD, streams=AGENTS, period_s=ONE_STREAM_S)
    assert 12 * by_shard == pytest.approx(120_000, rel=0.05)
    assert 12 * by_agent == pytest.approx(3_750, rel=0.05)


def test_a_batch_that_fills_up_closes_before_its_interval() -> None:
    assert upload_period_s(interval_s=0.25, requests_per_s=100, size_bytes=4e6, bytes_per_s=40e6) == 0.1
    assert upload_period_s(interval_s=0.25, requests_per_s=100, size_bytes=4e6, bytes_per_s=4e6) == 0.26
    assert upload_period_s(interval_s=0.25, requests_per_s=0) == inf
    assert streams_usd_month(S3_STANDARD, streams=9, period_s=inf) == 0


def test_where_bytes_that_come_in_are_charged_they_are_in_it() -> None:
    puts_usd = streams_usd_month(S3_EXPRESS, streams=1, period_s=0.2)
    assert puts_usd == pytest.approx(65.7 * 1.13 / 5)
    with_bytes_usd = streams_usd_month(S3_EXPRESS, streams=1, period_s=0.2, upload_bytes_per_s=(1 << 30) / 3600)
    assert with_bytes_usd - puts_usd == pytest.approx(730 * 0.0032)
    assert streams_usd_month(FREE, streams=1, period_s=0.2, upload_bytes_per_s=1e9) == 0


def test_the_arithmetic_agrees_with_shards_in_virtual_time() -> None:
    agent = AgentModel(budget_usd_month=0.0)
    duration_s = 20.0
    model = run_trace(agent, policy_named("per-shard"), [Phase("trickle", duration_s, lambda _: 1e6)])
    period_s = upload_period_s(interval_s=agent.interval_s, requests_per_s=1e6 / 4000 / agent.shard_count)
    assert len(model.samples.put_s) / duration_s == pytest.approx(agent.shard_count / period_s, rel=0.05)
