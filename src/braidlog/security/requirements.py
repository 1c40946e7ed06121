"""What each Kafka API asks of a client: the rights that it needs, by API key.

This is Kafka's own list. Tests walk it through every API that is advertised, and `docs/security.md` shows it.
"""

from typing import NamedTuple

from braidlog.security.acls import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER,
    CLUSTER_ACTION,
    CREATE,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    GROUP,
    IDEMPOTENT_WRITE,
    OPERATION_NAMES,
    READ,
    RESOURCE_NAMES,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
)


class Right(NamedTuple):
    operation: int
    resource_type: int

    def __str__(self) -> str:
        return f"{OPERATION_NAMES[self.operation]} {RESOURCE_NAMES[self.resource_type]}"


class Requirement(NamedTuple):
    """What a client needs.

    Each way is enough. Of a way, all rights are needed.
    """

    when: str
    """When this is asked; empty: always."""
    ways: tuple[tuple[Right, ...], ...]
    is_silent: bool = False
    """Whether the answer leaves out what the client may not see, instead of an error."""


def _always(*rights: Right) -> tuple[Requirement, ...]:
    return (Requirement("", (rights,)),)


_DESCRIBE_CLUSTER = Right(DESCRIBE, CLUSTER)
_ALTER_CLUSTER = Right(ALTER, CLUSTER)
_READ_GROUP = Right(READ, GROUP)
_DESCRIBE_GROUP = Right(DESCRIBE, GROUP)
_READ_TOPIC = Right(READ, TOPIC)
_WRITE_TOPIC = Right(WRITE, TOPIC)
_DESCRIBE_TOPIC = Right(DESCRIBE, TOPIC)
_WRITE_TRANSACTIONAL_ID = Right(WRITE, TRANSACTIONAL_ID)
_DESCRIBE_TRANSACTIONAL_ID = Right(DESCRIBE, TRANSACTIONAL_ID)


def _configs(operation: int) -> tuple[Requirement, ...]:
    return (
        Requirement("a topic", ((Right(operation, TOPIC),),)),
        Requirement("a group", ((Right(operation, GROUP),),)),
        Requirement("an agent, the cluster, loggers, client metrics", ((Right(operation, CLUSTER),),)),
    )


REQUIREMENTS: dict[int, tuple[Requirement, ...]] = {
    0: (
        Requirement("", ((_WRITE_TOPIC,),)),
        Requirement("in a transaction", ((_WRITE_TOPIC, _WRITE_TRANSACTIONAL_ID),)),
    ),
    1: _always(_READ_TOPIC),
    2: _always(_DESCRIBE_TOPIC),
    3: (
        Requirement("named topics", ((_DESCRIBE_TOPIC,),)),
        Requirement("all topics", ((_DESCRIBE_TOPIC,),), is_silent=True),
        Requirement(
            "a topic to create", ((_DESCRIBE_TOPIC, Right(CREATE, CLUSTER)), (_DESCRIBE_TOPIC, Right(CREATE, TOPIC)))
        ),
    ),
    8: _always(_READ_GROUP, _READ_TOPIC),
    9: _always(_DESCRIBE_GROUP, _DESCRIBE_TOPIC),
    10: (
        Requirement("of a group", ((_DESCRIBE_GROUP,),)),
        Requirement("of a transactional id", ((_DESCRIBE_TRANSACTIONAL_ID,),)),
    ),
    11: _always(_READ_GROUP),
    12: _always(_READ_GROUP),
    13: _always(_READ_GROUP),
    14: _always(_READ_GROUP),
    15: _always(_DESCRIBE_GROUP),
    16: (Requirement("", ((_DESCRIBE_CLUSTER,), (_DESCRIBE_GROUP,)), is_silent=True),),
    17: (),
    18: (),
    19: (Requirement("", ((Right(CREATE, CLUSTER),), (Right(CREATE, TOPIC),))),),
    20: _always(Right(DELETE, TOPIC)),
    21: _always(Right(DELETE, TOPIC)),
    22: (
        Requirement("without a transactional id", ((Right(IDEMPOTENT_WRITE, CLUSTER),), (_WRITE_TOPIC,))),
        Requirement("with a transactional id", ((_WRITE_TRANSACTIONAL_ID,),)),
    ),
    23: _always(_DESCRIBE_TOPIC),
    24: (
        Requirement("up to version 3", ((_WRITE_TRANSACTIONAL_ID, _WRITE_TOPIC),)),
        Requirement("from version 4 on", ((Right(CLUSTER_ACTION, CLUSTER),),)),
    ),
    25: _always(_WRITE_TRANSACTIONAL_ID, _READ_GROUP),
    26: _always(_WRITE_TRANSACTIONAL_ID),
    27: (Requirement("", ((_ALTER_CLUSTER,), (Right(CLUSTER_ACTION, CLUSTER),))),),
    28: _always(_WRITE_TRANSACTIONAL_ID, _READ_GROUP, _READ_TOPIC),
    29: _always(_DESCRIBE_CLUSTER),
    30: _always(_ALTER_CLUSTER),
    31: _always(_ALTER_CLUSTER),
    32: _configs(DESCRIBE_CONFIGS),
    33: _configs(ALTER_CONFIGS),
    34: _always(_ALTER_CLUSTER),
    35: _always(_DESCRIBE_CLUSTER),
    36: (),
    37: _always(Right(ALTER, TOPIC)),
    42: _always(Right(DELETE, GROUP)),
    43: _always(_ALTER_CLUSTER),
    44: _configs(ALTER_CONFIGS),
    45: _always(_ALTER_CLUSTER),
    46: _always(_DESCRIBE_CLUSTER),
    47: _always(Right(DELETE, GROUP), _READ_TOPIC),
    48: _always(Right(DESCRIBE_CONFIGS, CLUSTER)),
    49: _always(Right(ALTER_CONFIGS, CLUSTER)),
    50: _always(_DESCRIBE_CLUSTER),
    51: _always(_ALTER_CLUSTER),
    55: _always(_DESCRIBE_CLUSTER),
    57: _always(_ALTER_CLUSTER),
    60: (),
    61: _always(_READ_TOPIC),
    65: _always(_DESCRIBE_TRANSACTIONAL_ID),
    66: (Requirement("", ((_DESCRIBE_TRANSACTIONAL_ID,),), is_silent=True),),
    68: _always(_READ_GROUP, _DESCRIBE_TOPIC),
    69: _always(_DESCRIBE_GROUP),
    74: _always(Right(DESCRIBE_CONFIGS, CLUSTER)),
    75: _always(_DESCRIBE_TOPIC),
}
