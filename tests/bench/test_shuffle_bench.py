"""The shuffle's benchmark keeps what it has measured."""

import importlib
import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_a_scenario_that_fails_costs_only_its_own_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    shuffle = importlib.import_module("shuffle")
    out = tmp_path / "figures.json"
    kept: list[dict[str, float]] = []

    def run(name: str, found: Path) -> bool:
        if out.exists():
            kept.append(json.loads(out.read_text()))
        if name == "breaks":
            return False
        found.write_text(json.dumps({name: 1.0}))
        return True

    figures, failed = shuffle.each_alone(["one", "breaks", "two"], run, out)
    assert (figures, failed) == ({"one": 1.0, "two": 1.0}, ["breaks"])
    assert kept == [{"one": 1.0}, {"one": 1.0}], "the figures of a scenario are written when it ends"
    assert json.loads(out.read_text()) == figures
    for name in [each for each in sys.modules if each == "shuffle" or each.startswith("_shuffle")]:
        del sys.modules[name]
