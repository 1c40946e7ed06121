"""The files in `deploy`, parsed."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

_METRIC = re.compile(r"\bbraidlog_\w+")


def rules() -> list[dict[str, Any]]:
    text = (DEPLOY / "prometheus" / "rules.yaml").read_text(encoding="utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())["panels"]
    return found


def metrics_named() -> set[str]:
    """Every metric that a rule or a panel asks for."""
    asked = [rule["expr"] for rule in rules()]
    asked += [target["expr"] for panel in panels() for target in panel["targets"]]
    return {name for expression in asked for name in _METRIC.findall(expression)}


def services() -> dict[str, dict[str, Any]]:
    """The services of the compose file that run Braidlog."""
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]
    return {name: service for name, service in found.items() if service["image"] == "braidlog"}


def unit_commands() -> dict[str, list[str]]:
    """The command that each systemd unit starts, without the program."""
    found = {}
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        (line,) = re.findall(r"^ExecStart=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        found[path.stem] = shlex.split(line)[1:]
    return found
