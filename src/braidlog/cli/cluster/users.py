"""`braid user`: create, list and delete users, who log in with SCRAM or PLAIN."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format
from braidlog.cli.output import OutputFormat, emit_json, emit_rows, say

app = typer.Typer(help="Create, list and delete users.", no_args_is_help=True, rich_markup_mode=None)

TIMEOUT_S = 10.0
ITERATIONS = 8192
DESCRIBE, VERSION = 50, 0


class Mechanism(StrEnum):
    """SCRAM with either hash."""

    SCRAM_SHA_256 = "scram-sha-256"
    SCRAM_SHA_512 = "scram-sha-512"


Name = Annotated[str, typer.Argument(metavar="NAME", help="The user's name, without User:.")]
Mechanisms = Annotated[list[Mechanism] | None, typer.Option("--mechanism", "-m", help="One of the two; else both.")]


@app.command()
def create(
    name: Name,
    password_file: Annotated[
        Path | None, typer.Option("--password-file", metavar="FILE", help="Its first line; else asked for, or stdin.")
    ] = None,
    mechanism: Mechanisms = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Create a user, or change a password.

    The password is salted and iterated here, and never sent.

    \b
    Example: braid user create alice --password-file alice.password
    """
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    from braidlog.clients.kafka_client import admin, result

    password = _password(password_file).encode()
    wanted = mechanism or list(Mechanism)
    client = admin(bootstrap)
    for each in wanted:
        info = ScramCredentialInfo(ScramMechanism[each.name], ITERATIONS)
        futures = client.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(name, info, password)], request_timeout=TIMEOUT_S
        )
        result(futures, name)
    if format is OutputFormat.JSON:
        emit_json({"user": name, "mechanisms": [each.value for each in wanted]})
    else:
        say(f"{name}: may log in with {', '.join(each.value for each in wanted)}")


def _password(path: Path | None) -> str:
    """Read the password.

    Not from an option, which every process on the machine could read.
    """
    from braidlog.clients.errors import CommandError

    if path is not None:
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror}", help="Check its path.") from None
    elif sys.stdin.isatty():
        text = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        text = sys.stdin.readline()
    password = text.splitlines()[0] if text else ""
    if not password:
        raise CommandError("the password is empty", help="Type one, or write it into a file: --password-file FILE.")
    return password


@app.command("list")
def list_users(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, format: Format = OutputFormat.TEXT) -> None:
    """List users and how they may log in.

    \b
    Example: braid user list
    """
    emit_rows(format, ["user", "mechanism", "iterations"], _credentials(bootstrap))


def _credentials(bootstrap: str) -> list[dict[str, Any]]:
    from braidlog.clients.kafka_call import call, raise_for
    from braidlog.clients.kafka_client import check_listening
    from braidlog.wire.calls import request_types

    request = request_types(DESCRIBE, VERSION).DescribeUserScramCredentialsRequest(users=None)
    answer = call(check_listening(bootstrap), DESCRIBE, VERSION, request)
    raise_for(answer, "Use a principal that may describe the cluster.")
    mechanisms = dict(enumerate(Mechanism, 1))
    return [
        {"user": each.user, "mechanism": mechanisms[info.mechanism].value, "iterations": int(info.iterations)}
        for each in answer.results
        for info in sorted(each.credential_infos, key=lambda info: int(info.mechanism))
    ]


@app.command()
def delete(
    name: Name,
    mechanism: Mechanisms = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete a user, who then cannot log in any more.

    \b
    Example: braid user delete alice
    """
    from confluent_kafka.admin import ScramMechanism, UserScramCredentialDeletion

    from braidlog.clients.errors import CommandError
    from braidlog.clients.kafka_client import admin, result

    client = admin(bootstrap)
    there = {row["mechanism"] for row in _credentials(bootstrap) if row["user"] == name}
    gone = [each for each in mechanism or list(Mechanism) if each.value in there]
    if not gone:
        raise CommandError(f"{name} has no such credential", help="`braid user list` shows all users.")
    for each in gone:
        deletion = UserScramCredentialDeletion(name, ScramMechanism[each.name])
        result(client.alter_user_scram_credentials([deletion], request_timeout=TIMEOUT_S), name)
    if format is OutputFormat.JSON:
        emit_json({"user": name, "deleted": [each.value for each in gone]})
    else:
        say(f"{name}: deleted {', '.join(each.value for each in gone)}")
