"""The page on the simulator lists every scenario and every planted mistake."""

import pytest
from tests.docs.snippets import ROOT

from braidlog.sim.mistakes import MISTAKES
from braidlog.sim.scenarios import SCENARIOS

PAGE = (ROOT / "docs" / "simulator.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_is_on_the_page(scenario: str) -> None:
    assert f"`{scenario}`" in PAGE


@pytest.mark.parametrize("mistake", MISTAKES)
def test_every_mistake_is_on_the_page(mistake: str) -> None:
    assert f"| {MISTAKES[mistake].what} | `{MISTAKES[mistake].scenario}` |" in PAGE
