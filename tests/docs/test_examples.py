"""Every program in `examples` runs to its end, and prints what it found."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.snippets import ROOT

EXAMPLES = ROOT / "examples"
SAYS = {
    "produce_and_consume.py": "read 1000 records",
    "exactly_once.py": "200 orders have one receipt each",
    "lightning.py": "500 records in order",
    "embedding.py": "read 10 records, the last of them 'hello 9'",
    "page_views.py": '"views":',
    "shuffle.py": "100000 orders of 1000 customers",
}
ON_SPARK = {"page_views.py", "shuffle.py"}


def options_of(example: str, address: str, folder: Path) -> list[str]:
    match example:
        case "page_views.py":
            return ["--address", address, "--checkpoint", str(folder / "checkpoint"), "--make", "1000"]
        case "embedding.py" | "shuffle.py":
            return []
        case _:
            return ["--bootstrap", address]


def test_every_example_is_tested_and_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAYS)
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert all(f"({name})" in page for name in SAYS)


@pytest.mark.timeout(600)  # a JVM takes minutes to start where others use the machine
@pytest.mark.parametrize(
    "example", [pytest.param(name, marks=[pytest.mark.slow] if name in ON_SPARK else []) for name in SAYS]
)
def test_an_example_works(example: str, clean_places: dict[str, str], tmp_path: Path) -> None:
    address = clean_places["127.0.0.1:9092"]
    if example == "page_views.py":
        braid = [sys.executable, "-m", "braidlog", "topic", "create", "--bootstrap", address]
        subprocess.run([*braid, "views", "--partitions", "4"], check=True, timeout=120)
        subprocess.run([*braid, "views-per-minute"], check=True, timeout=120)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *options_of(example, address, tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS[example] in done.stdout, done.stdout + done.stderr
