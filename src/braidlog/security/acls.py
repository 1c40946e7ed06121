"""Access control lists: resources, operations, patterns, and filters over them.

The numbers are Kafka's. They go over the wire and into the metadata: persisted, keep stable.
"""

from typing import Final, NamedTuple

from braidlog.security.principals import reason_against_principal

# Resource types. ANY matches every type in filters.
ANY: Final = 1
TOPIC: Final = 2
GROUP: Final = 3
CLUSTER: Final = 4
TRANSACTIONAL_ID: Final = 5
DELEGATION_TOKEN: Final = 6
USER: Final = 7

# Operations.
ANY_OPERATION: Final = 1
ALL: Final = 2
READ: Final = 3
WRITE: Final = 4
CREATE: Final = 5
DELETE: Final = 6
ALTER: Final = 7
DESCRIBE: Final = 8
CLUSTER_ACTION: Final = 9
DESCRIBE_CONFIGS: Final = 10
ALTER_CONFIGS: Final = 11
IDEMPOTENT_WRITE: Final = 12
CREATE_TOKENS: Final = 13
DESCRIBE_TOKENS: Final = 14
TWO_PHASE_COMMIT: Final = 15

# Pattern types. MATCH finds, in filters, all ACLs that concern a name.
ANY_PATTERN: Final = 1
MATCH: Final = 2
LITERAL: Final = 3
PREFIXED: Final = 4

# Permissions.
ANY_PERMISSION: Final = 1
DENY: Final = 2
ALLOW: Final = 3

WILDCARD: Final = "*"
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type CLUSTER."""

RESOURCE_NAMES: Final = {
    TOPIC: "topic",
    GROUP: "group",
    CLUSTER: "cluster",
    TRANSACTIONAL_ID: "transactional-id",
    DELEGATION_TOKEN: "delegation-token",
    USER: "user",
}
OPERATION_NAMES: Final = {
    ALL: "all",
    READ: "read",
    WRITE: "write",
    CREATE: "create",
    DELETE: "delete",
    ALTER: "alter",
    DESCRIBE: "describe",
    CLUSTER_ACTION: "cluster-action",
    DESCRIBE_CONFIGS: "describe-configs",
    ALTER_CONFIGS: "alter-configs",
    IDEMPOTENT_WRITE: "idempotent-write",
    CREATE_TOKENS: "create-tokens",
    DESCRIBE_TOKENS: "describe-tokens",
    TWO_PHASE_COMMIT: "two-phase-commit",
}
PATTERN_NAMES: Final = {LITERAL: "literal", PREFIXED: "prefixed"}
PERMISSION_NAMES: Final = {ALLOW: "allow", DENY: "deny"}

OPERATIONS_OF: Final = {
    TOPIC: (READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    GROUP: (READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS),
    CLUSTER: (CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE),
    TRANSACTIONAL_ID: (WRITE, DESCRIBE, TWO_PHASE_COMMIT),
    DELEGATION_TOKEN: (DESCRIBE,),
    USER: (CREATE_TOKENS, DESCRIBE_TOKENS),
}
"""The operations that exist for each type of resource."""

IMPLIED_BY: Final = {
    DESCRIBE: (READ, WRITE, DELETE, ALTER),
    DESCRIBE_CONFIGS: (ALTER_CONFIGS,),
}
"""Operations that whoever may do one of these others may do too."""

NAME_LENGTH_MAX = 32_767


class Acl(NamedTuple):
    """One rule: what a principal may, or may not, do from a host.

    Persisted: keep the order of fields.
    """

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        name = self.name if self.pattern_type == LITERAL else f"{self.name}…"
        return (
            f"{PERMISSION_NAMES[self.permission]} {self.principal} from {self.host} to "
            f"{OPERATION_NAMES[self.operation]} {RESOURCE_NAMES[self.resource_type]} {name}"
        )


class AclFilter(NamedTuple):
    """Selects ACLs. None, and the values that begin with ANY, match everything."""

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = ANY_PATTERN
    principal: str | None = None
    host: str | None = None
    operation: int = ANY_OPERATION
    permission: int = ANY_PERMISSION

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY_OPERATION, acl.operation)
            and self.permission in (ANY_PERMISSION, acl.permission)
        )

    def _matches_name(self, acl: Acl) -> bool:
        if self.pattern_type == MATCH:
            return self.name is None or concerns(acl, self.name)
        return self.pattern_type in (ANY_PATTERN, acl.pattern_type) and self.name in (None, acl.name)


def concerns(acl: Acl, name: str) -> bool:
    """Whether the ACL's pattern matches a resource of this name."""
    if acl.pattern_type == PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (WILDCARD, name)


def reason_against_acl(acl: Acl) -> str | None:
    """Why an ACL cannot be created; None if it can.

    The words are Kafka's where Kafka has some.
    """
    if acl.resource_type not in OPERATIONS_OF:
        return f"Invalid resourceType {acl.resource_type}"
    if acl.pattern_type not in PATTERN_NAMES:
        return f"Invalid patternType {acl.pattern_type}"
    if acl.operation not in OPERATION_NAMES:
        return f"Invalid operation {acl.operation}"
    if acl.permission not in PERMISSION_NAMES:
        return f"Invalid permissionType {acl.permission}"
    if not acl.name:
        return "Invalid empty resource name"
    if len(acl.name) > NAME_LENGTH_MAX:
        return f"A resource name has at most {NAME_LENGTH_MAX} characters"
    if acl.resource_type == CLUSTER and acl.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.host:
        return "Invalid empty host: * means every host"
    return reason_against_principal(acl.principal)
