"""The shuffle's benchmark keeps what it has measured."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidlog.cost.shuffle import ShuffleLoad, predict

MIB = 1 << 20
BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules of the benchmark can be imported, and are gone afterwards."""
    monkeypatch.syspath_prepend(str(BENCH))
    yield
    for name in [each for each in sys.modules if each == "shuffle" or each.startswith("_shuffle")]:
        del sys.modules[name]


@pytest.mark.parametrize("zones", [2, 3])
def test_the_model_holds_in_virtual_time(zones: int, bench: None) -> None:
    """Batchers, the caches of zones and debatchers over the latency model of S3, and what the model says of them."""
    model = importlib.import_module("_shuffle_model")
    fills = 6
    load = ShuffleLoad(8 * MIB, 256 * 1024, zones=zones, instances=zones, interval_s=1e6)
    predicted = predict(load)
    # Half a batch more: no batch ends with the run.
    outcome = model.run(load, seconds=(fills + 0.5) * predicted.batch_fill_s, partitions=4 * zones)
    assert outcome.rows_out == outcome.rows_in
    full = [size for size in outcome.put_bytes if size >= 0.9 * load.batch_bytes]
    assert len(full) == pytest.approx(fills * predicted.batch_fill_s * predicted.puts_per_s, rel=0.1)
    assert len(outcome.get_s) / len(outcome.put_s) == pytest.approx((zones - 1) / zones)
    assert max(outcome.latency_s) <= outcome.latency_bound_s
    # It is a bound, and not far above: some record has waited for most of it.
    assert max(outcome.latency_s) > 0.5 * outcome.latency_bound_s


def test_a_scenario_that_fails_costs_only_its_own_figures(tmp_path: Path, bench: None) -> None:
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
