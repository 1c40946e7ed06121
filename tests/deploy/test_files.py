"""What `deploy` starts and asks for is there."""

import re
import shutil
import subprocess

import pytest
from tests.deploy.files import DEPLOY, ROOT, metrics_named, panels, rules, services, unit_commands
from typer.main import get_command

from braidlog.cli.main import app
from braidlog.objects.open import open_store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SystemEntropy

COMMANDS = {**unit_commands(), **{name: service["command"] for name, service in services().items()}}


def test_every_metric_that_is_asked_for_is_documented() -> None:
    """The page of metrics is written from what a cluster serves."""
    known = set(re.findall(r"^\| `(braidlog_\w+)` \| (?:gauge|counter)", page := _metrics_page(), re.MULTILINE))
    for name in re.findall(r"^\| `(braidlog_\w+)` \| histogram", page, re.MULTILINE):
        known |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    assert metrics_named()
    assert metrics_named() <= known, metrics_named() - known


def _metrics_page() -> str:
    return (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")


def test_every_alert_says_what_to_do() -> None:
    for rule in rules():
        assert {"alert", "expr", "for"} <= rule.keys()
        assert rule["labels"]["severity"] in {"page", "warn"}
        assert {"summary", "action"} <= rule["annotations"].keys()
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))


def test_panels_do_not_overlap() -> None:
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels()]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_line_is_one_that_braid_takes(name: str) -> None:
    command, *arguments = COMMANDS[name]
    group = get_command(app)
    found = group.commands[command]  # type: ignore[attr-defined]
    # Files that are not on this machine are not read here: only the options are parsed.
    context = found.make_context(command, list(arguments), resilient_parsing=False)
    assert context.params


def test_the_store_of_the_compose_file_can_be_opened() -> None:
    """No request is made. Plain HTTP, for one, is refused unless the URL allows it."""
    urls = {service["environment"]["BRAIDLOG_STORE_URL"] for service in services().values() if "environment" in service}
    assert [open_store(url, clock=SystemClock(), entropy=SystemEntropy()).url for url in urls]


def test_ports_of_the_compose_file_are_used_once_and_on_this_machine_alone() -> None:
    listens = [
        address
        for service in services().values()
        for option, address in zip(service["command"], service["command"][1:], strict=False)
        if option in {"--listen", "--metrics"} and service["command"][0] != "console"
    ]
    assert len(listens) == len(set(listens))
    assert all(address.startswith("127.0.0.1:") for address in listens)


def test_the_image_runs_without_root_and_copies_what_is_there() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert "HEALTHCHECK" in text
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        assert all((ROOT / each).exists() for each in line.split()[:-1]), line


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus")
def test_prometheus_takes_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", DEPLOY / "prometheus" / "rules.yaml"], check=True)
