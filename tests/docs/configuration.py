"""`docs/configuration.md`, written from the settings, the configs and the commands themselves."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import click
import typer.main
from annotated_types import Ge, Le
from pydantic.fields import FieldInfo
from tests.docs.tables import WRITTEN_BY, code, table

from braidlog.cli.main import app
from braidlog.configs.cluster import CLUSTER_CONFIGS
from braidlog.configs.definition import INT_MAX, LONG_MAX, ConfigDefinition, ConfigType
from braidlog.configs.topic_definitions import TOPIC_CONFIGS
from braidlog.control.groups.config import GROUP_CONFIGS
from braidlog.runtime.settings import (
    ENVIRONMENT_PREFIX,
    AgentSettings,
    CommonSettings,
    ControlPlaneSettings,
    written,
)

OPENING = f"""# Configuration

{WRITTEN_BY}

**Settings** belong to a process: you give them when you start it. **Configs** belong to the cluster, a topic or a
consumer group: you change them with `braid topic alter` or any Kafka client, and they hold for every agent.

## How to give a setting

A flag wins over the environment, which wins over a file, which wins over the default. `braid settings` shows every
value and where it comes from.

| way | example |
|---|---|
| a flag of its own | `braid up --listen 127.0.0.1:9092` |
| any setting | `braid up --set upload_size_bytes=8MiB` |
| environment | `{ENVIRONMENT_PREFIX}UPLOAD_SIZE_BYTES=8MiB`: the name in capitals, behind `{ENVIRONMENT_PREFIX}` |
| file | `braid up --config braidlog.toml` |

Dots, dashes and underscores in names mean the same. In a file, a table's name is the first part of the names in it:

```toml
store_url = "s3://bucket/prefix"

[upload]
size_bytes = "8MiB"         # upload_size_bytes
interval_ms = "100ms"       # upload_interval_ms
```

Sizes take `KiB`, `MiB`, `GiB`; durations take `ms`, `s`, `m`, `h`, `d`. A number without a unit has the unit
that ends the name. Every limit below is inclusive."""

VARIABLES_OUTRO = """`BRAIDLOG_CLIENT_CONFIG` names a file of client properties, for clusters that want TLS or a login
([security.md](security.md#clients)).

With `BRAIDLOG_TRACEBACK=1`, a command that fails shows the traceback."""

TOPIC_INTRO = """Set them when you create a topic (`braid topic create NAME --config retention.ms=3600000`) or later
(`braid topic alter NAME --set …`, `--unset …`). The column *cluster config* names what sets the default, the
strongest first."""

CLUSTER_INTRO = """They are what Kafka calls broker configs, kept once for the whole cluster. Change them with a Kafka
client, as dynamic broker defaults. Those marked *read-only* describe one agent, or come from the settings of the
control plane."""

GROUP_INTRO = """Change them with a Kafka client that has `ConfigResource.Type.GROUP`. They hold for groups with
`group.protocol=consumer`."""


def configuration_page() -> str:
    common = CommonSettings.model_fields
    agent = {name: field for name, field in AgentSettings.model_fields.items() if name not in common}
    control = {name: field for name, field in ControlPlaneSettings.model_fields.items() if name not in common}
    steering, kept = _by_effect(TOPIC_CONFIGS)
    group, group_kept = _by_effect(GROUP_CONFIGS)
    own = {name: each for name, each in CLUSTER_CONFIGS.items() if not each.documentation.startswith("Default of the")}
    parts = [
        OPENING,
        f"## Settings of every process\n\n{_settings(common)}",
        f"## Settings of agents\n\n{_settings(agent)}",
        f"## Settings of the control plane\n\n`braid up` takes these and those of agents.\n\n{_settings(control)}",
        f"## Environment variables of commands\n\n{_variables()}\n\n{VARIABLES_OUTRO}",
        f"## Topic configs\n\n{TOPIC_INTRO}\n\n{_configs(steering, synonyms=True)}",
        f"Kafka has these too. Braidlog accepts and shows them, and they change nothing:\n{_names(kept)}",
        f"## Cluster configs\n\n{CLUSTER_INTRO}\n\n{_configs(own)}",
        "The other cluster configs are the defaults of topic configs, named above.",
        f"## Group configs\n\n{GROUP_INTRO}\n\n{_configs(group)}",
        f"Accepted and shown, without effect:\n{_names(group_kept)}",
    ]
    return "\n\n".join(parts) + "\n"


def _settings(fields: Mapping[str, FieldInfo]) -> str:
    rows = [
        [code(name), code(_default(name, field)), _accepted(name, field), field.description or ""]
        for name, field in fields.items()
    ]
    return table(["setting", "default", "accepts", "meaning"], rows)


def _default(name: str, field: FieldInfo) -> str:
    return "" if field.default is None else written(name, _whole(field.default))


def _whole(value: Any) -> Any:
    """A number without the part behind the point where that says nothing."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _accepted(name: str, field: FieldInfo) -> str:
    if choices := _choices(field.annotation):
        return ", ".join(code(choice) for choice in choices)
    lowest = [code(written(name, _whole(rule.ge))) for rule in field.metadata if isinstance(rule, Ge)]
    highest = [code(written(name, _whole(rule.le))) for rule in field.metadata if isinstance(rule, Le)]
    if lowest and highest:
        return f"{lowest[0]} to {highest[0]}"
    return f"at least {lowest[0]}" if lowest else f"e.g. {code((field.examples or [''])[0])}"


def _choices(annotation: Any) -> list[str]:
    if annotation is bool:
        return ["true", "false"]
    return [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []


def _variables() -> str:
    found: dict[str, tuple[str, str, set[str]]] = {}
    for path, command in leaves(typer.main.get_command(app)):
        for option in command.params:
            if option.envvar:
                known = found.setdefault(str(option.envvar), (option.opts[0], getattr(option, "help", ""), set()))
                known[2].add(path[0])
    rows = [
        [code(name), code(option), ", ".join(code(each) for each in sorted(commands)), meaning]
        for name, (option, meaning, commands) in sorted(found.items())
    ]
    return table(["variable", "stands for", "of the commands", "meaning"], rows)


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands that do something, each with the words that call it; hidden ones are left out."""
    children: Mapping[str, click.Command] | None = getattr(command, "commands", None)
    if children is None:
        yield path, command
        return
    if path and getattr(command, "invoke_without_command", False):
        yield path, command
    for name, child in children.items():
        if not child.hidden:
            yield from leaves(child, (*path, name))


def _by_effect(
    definitions: Mapping[str, ConfigDefinition],
) -> tuple[dict[str, ConfigDefinition], dict[str, ConfigDefinition]]:
    kept = {name: each for name, each in definitions.items() if each.documentation.startswith("Kept for tools")}
    return {name: each for name, each in definitions.items() if name not in kept}, kept


def _configs(definitions: Mapping[str, ConfigDefinition], *, synonyms: bool = False) -> str:
    rows = []
    for name, each in sorted(definitions.items()):
        # What is read-only is told by the process that it belongs to; the definition's default is Kafka's.
        default = _number(each.default) if each.default is not None and not each.read_only else ""
        row = [code(name), code(default), _values(each)]
        if synonyms:
            row.append(", ".join(code(synonym.name) for synonym in each.synonyms))
        rows.append([*row, f"*read-only* {each.documentation}" if each.read_only else each.documentation])
    header = ["config", "default", "accepts", *(["cluster config"] if synonyms else []), "meaning"]
    return table(header, rows)


def _values(definition: ConfigDefinition) -> str:
    kind = definition.type.name.lower()
    if definition.type is ConfigType.BOOLEAN:
        return f"{code('true')}, {code('false')}"
    if definition.one_of:
        choices = ", ".join(code(choice) for choice in definition.one_of)
        return f"list of {choices}" if definition.type is ConfigType.LIST else choices
    lowest = f" from {definition.at_least}" if definition.at_least is not None else ""
    highest = f" to {definition.at_most}" if definition.at_most not in (None, INT_MAX) else ""
    return f"{kind}{lowest}{highest}"


def _number(text: str) -> str:
    """The largest numbers mean that there is no limit."""
    return {str(LONG_MAX): "2⁶³−1", str(INT_MAX): "2³¹−1"}.get(text, text)


def _names(definitions: Mapping[str, ConfigDefinition]) -> str:
    return textwrap.fill(", ".join(code(name) for name in sorted(definitions)) + ".", 120, break_on_hyphens=False)
