"""`docs/commands.md`, written from the help of the commands themselves."""

import re

import typer.main
from tests.docs.configuration import leaves
from tests.docs.tables import WRITTEN_BY, code, table

from braidlog.cli.main import app

CLOSING = """Every command has `--help` with an example, and `--format json`. `braid --install-completion` sets up
the shell.

## Output and exit codes

Data goes to standard output. Everything else goes to standard error, errors too; with `--format json`, errors are JSON
as well.

| exit code | meaning |
|---|---|
| 0 | the command did what it was asked, or a server was stopped by a signal |
| 1 | it failed |
| 2 | the command line is wrong |
| 141 | the reader of its output has gone |
| 143 | SIGTERM ended it |

An error has two lines: what happened, and what to do about it. With `BRAIDLOG_TRACEBACK=1` a traceback follows.

## Addresses

Commands that ask a cluster take the address of any agent (`--bootstrap`, or `BRAIDLOG_BOOTSTRAP`). Those that ask the
control plane find it through that agent, or are told where it is (`--control`, or `BRAIDLOG_CONTROL`). The defaults are
those of `braid up`: `127.0.0.1:9092` and `127.0.0.1:9190`.

An agent has a process, a port and a node id for each core, from its port upwards: 9092, 9093, … `braid up` has one
process for everything, so there is one port to open. `--shards` changes either."""

EXAMPLE = re.compile(r"^Examples?:\s*(.*braid .*)$", re.MULTILINE)


def commands_page() -> str:
    rows = []
    for path, command in leaves(typer.main.get_command(app)):
        text = command.help or ""
        example = EXAMPLE.search(text)
        rows.append(
            [
                code(f"braid {' '.join(path)}"),
                " ".join(text.split("\n\n")[0].split()),
                code(example[1]) if example else "",
            ]
        )
    return (
        f"# The braid command\n\n{WRITTEN_BY}\n\n{table(['command', 'what it does', 'example'], rows)}\n\n{CLOSING}\n"
    )
