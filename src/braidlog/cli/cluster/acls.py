"""`braid acl`: create, list and delete ACLs."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from braidlog.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, Format
from braidlog.cli.output import OutputFormat, emit_json, emit_rows, say

if TYPE_CHECKING:
    from confluent_kafka.admin import AclBinding

app = typer.Typer(help="Create, list and delete access rules (ACLs).", no_args_is_help=True, rich_markup_mode=None)


class Operation(StrEnum):
    """The operations of ACLs, as people write them."""

    ALL = "all"
    READ = "read"
    WRITE = "write"
    CREATE = "create"
    DELETE = "delete"
    ALTER = "alter"
    DESCRIBE = "describe"
    CLUSTER_ACTION = "cluster-action"
    DESCRIBE_CONFIGS = "describe-configs"
    ALTER_CONFIGS = "alter-configs"
    IDEMPOTENT_WRITE = "idempotent-write"


Principal = Annotated[str | None, typer.Option("--principal", metavar="User:NAME", help="Whose rules.")]
Topic = Annotated[str | None, typer.Option("--topic", metavar="NAME", help="A topic, or * for all.")]
Group = Annotated[str | None, typer.Option("--group", metavar="ID", help="A consumer group, or *.")]
TransactionalId = Annotated[str | None, typer.Option("--transactional-id", metavar="ID", help="An id, or *.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
Prefixed = Annotated[bool, typer.Option("--prefixed", help="All names that begin so.")]
Host = Annotated[str | None, typer.Option("--host", metavar="ADDRESS", help="The client's address; else all.")]
Operations = Annotated[
    list[Operation] | None,
    typer.Option("--operation", "-o", metavar="OPERATION", help="read, write, all, …; repeat for more."),
]

COLUMNS = ["principal", "permission", "operation", "resource", "name", "pattern", "host"]
DESCRIBE, VERSION = 29, 3
CLUSTER_NAME = "kafka-cluster"
TIMEOUT_S = 10.0


def _resources(
    topic: str | None, group: str | None, transactional_id: str | None, *, cluster: bool
) -> list[tuple[str, str]]:
    named = [("TOPIC", topic), ("GROUP", group), ("TRANSACTIONAL_ID", transactional_id)]
    return [
        *((kind, name) for kind, name in named if name is not None),
        *([("BROKER", CLUSTER_NAME)] if cluster else []),
    ]


@app.command()
def create(
    principal: Annotated[str, typer.Argument(metavar="User:NAME", help="Whom the rule is about; User:* is everybody.")],
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    deny: Annotated[bool, typer.Option("--deny", help="Forbid, whatever other rules allow.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Allow a principal to do something, or forbid it.

    \b
    Example: braid acl create User:alice -o read --topic orders --group readers
    """
    from braidlog.clients.errors import WrongUsage

    resources = _resources(topic, group, transactional_id, cluster=cluster)
    if not resources or not operation:
        raise WrongUsage(
            "the command does not say what may be done to what",
            help="For example: braid acl create User:alice --operation read --topic orders",
        )
    bindings = [
        _binding(kind, name, principal, each, host=host, prefixed=prefixed, deny=deny)
        for kind, name in resources
        for each in operation
    ]
    _create(bootstrap, bindings)
    rows = [_row(binding) for binding in bindings]
    if format is OutputFormat.JSON:
        emit_json({"created": rows})
    else:
        for row in rows:
            say(f"{row['principal']}: {row['permission']} {row['operation']} on {row['resource']} {row['name']}")


def _binding(
    kind: str, name: str, principal: str, operation: Operation, *, host: str | None, prefixed: bool, deny: bool
) -> "AclBinding":
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    is_prefixed = prefixed and kind != "BROKER"
    return AclBinding(
        ResourceType[kind],
        name,
        ResourcePatternType.PREFIXED if is_prefixed else ResourcePatternType.LITERAL,
        principal,
        host or "*",
        AclOperation[operation.name],
        AclPermissionType.DENY if deny else AclPermissionType.ALLOW,
    )


def _create(bootstrap: str, bindings: "list[AclBinding]") -> None:
    from braidlog.clients.kafka_client import admin, result

    client = admin(bootstrap)
    futures = client.create_acls(bindings, request_timeout=TIMEOUT_S)
    for binding in futures:
        result(futures, binding)


@app.command("list")
def list_acls(
    principal: Principal = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """List rules: all, or those that concern a resource or principal.

    \b
    Example: braid acl list --topic orders
    """
    rows: list[dict[str, str]] = []
    resources: list[tuple[str, str | None]] = [*_resources(topic, group, transactional_id, cluster=cluster)]
    for kind, name in resources or [("ANY", None)]:
        rows += [row for row in _described(bootstrap, kind, name, principal) if row not in rows]
    emit_rows(format, COLUMNS, sorted(rows, key=lambda row: tuple(row.values())))


def _described(bootstrap: str, kind: str, name: str | None, principal: str | None) -> list[dict[str, str]]:
    """Ask for the rules that concern a resource.

    Not through confluent-kafka, which shows no rules where it should say that the client may not see them.
    """
    from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

    from braidlog.clients.kafka_call import call, raise_for
    from braidlog.clients.kafka_client import check_listening
    from braidlog.wire.calls import request_types

    pattern = ResourcePatternType.ANY if name is None else ResourcePatternType.MATCH
    request = request_types(DESCRIBE, VERSION).DescribeAclsRequest(
        resource_type_filter=ResourceType[kind].value,
        resource_name_filter=name,
        pattern_type_filter=pattern.value,
        principal_filter=principal,
        host_filter=None,
        operation=AclOperation.ANY.value,
        permission_type=AclPermissionType.ANY.value,
    )
    answer = call(check_listening(bootstrap), DESCRIBE, VERSION, request)
    raise_for(answer, "`braid acl` needs an agent with authorizer=acl, and a principal that may use it.")
    return [
        _row(
            AclBinding(
                ResourceType(resource.resource_type),
                resource.resource_name,
                ResourcePatternType(resource.pattern_type),
                acl.principal,
                acl.host,
                AclOperation(acl.operation),
                AclPermissionType(acl.permission_type),
            )
        )
        for resource in answer.resources
        for acl in resource.acls
    ]


def _filter(
    kind: str,
    name: str | None,
    principal: str | None,
    *,
    pattern: str,
    operation: str = "ANY",
    permission: str = "ANY",
    host: str | None = None,
) -> Any:
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    return AclBindingFilter(
        ResourceType[kind],
        name,
        ResourcePatternType[pattern],
        principal,
        host,
        AclOperation[operation],
        AclPermissionType[permission],
    )


@app.command()
def delete(
    principal: Annotated[str, typer.Argument(metavar="User:NAME", help="Whose rules.")],
    operation: Operations = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    prefixed: Prefixed = False,
    host: Host = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    format: Format = OutputFormat.TEXT,
) -> None:
    """Delete a principal's rules: all, or those for a resource.

    \b
    Example: braid acl delete User:alice --topic orders
    """
    from braidlog.clients.errors import CommandError
    from braidlog.clients.kafka_client import admin, result

    resources: list[tuple[str, str | None]] = [*_resources(topic, group, transactional_id, cluster=cluster)]
    pattern = "ANY" if not resources else "PREFIXED" if prefixed else "LITERAL"
    filters = [
        _filter(kind, name, principal, pattern=pattern, operation=each, host=host)
        for kind, name in resources or [("ANY", None)]
        for each in ([one.name for one in operation] if operation else ["ANY"])
    ]
    client = admin(bootstrap)
    futures = client.delete_acls(filters, request_timeout=TIMEOUT_S)
    gone = [_row(binding) for each in futures for binding in result(futures, each)]
    if not gone:
        raise CommandError(f"{principal} has no such rule", help="`braid acl list` shows all rules.")
    if format is OutputFormat.JSON:
        emit_json({"deleted": gone})
    else:
        for row in gone:
            say(
                f"{row['principal']}: deleted {row['permission']} {row['operation']} on {row['resource']} {row['name']}"
            )


def _row(binding: "AclBinding") -> dict[str, str]:
    kind = binding.restype.name.lower().replace("_", "-")
    return {
        "principal": binding.principal,
        "permission": binding.permission_type.name.lower(),
        "operation": binding.operation.name.lower().replace("_", "-"),
        "resource": "cluster" if kind == "broker" else kind,
        "name": binding.name,
        "pattern": binding.resource_pattern_type.name.lower(),
        "host": binding.host,
    }
