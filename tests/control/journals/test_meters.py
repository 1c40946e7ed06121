"""Metrics of journals."""

from prometheus_client import CollectorRegistry
from tests.control.driver import Plane
from tests.control.journals.driver import ReplayingAgent, file

from braidlog.control.interface import (
    TopicInfo,
)
from braidlog.control.journals.meters import JournalMeters


async def test_figures_for_prometheus(plane: Plane, agent: ReplayingAgent, topic: TopicInfo) -> None:
    registry = CollectorRegistry()
    registry.register(JournalMeters(plane.service.parts.journals))
    await agent.put(file(topic, 0))
    await plane.service.commit_object(file(topic, 1))
    assert registry.get_sample_value("braidlog_control_journal_files_total", {"path": "fast"}) == 1
    assert registry.get_sample_value("braidlog_control_journal_unreplayed_files") == 1
    await plane.service.parts.journals.plan_once()
    await agent.work()
    assert registry.get_sample_value("braidlog_control_journal_files_total", {"path": "slow"}) == 1
    assert registry.get_sample_value("braidlog_control_journal_unreplayed_files") == 0
    assert registry.get_sample_value("braidlog_control_journal_complete_sequences") == 1
