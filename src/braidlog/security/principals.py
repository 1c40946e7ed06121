"""Principals: who a client is, as `User:alice`."""

ANONYMOUS_USER = "ANONYMOUS"
"""The user of a connection without authentication, as in Kafka."""
USER_TYPE = "User"
EVERY_USER = f"{USER_TYPE}:*"
PRINCIPAL_LENGTH_MAX = 512


def principal_of(user: str) -> str:
    """The principal of a user."""
    return f"{USER_TYPE}:{user}"


ANONYMOUS = principal_of(ANONYMOUS_USER)


def reason_against_principal(principal: str) -> str | None:
    """Why a text is no principal; None if it is one."""
    kind, colon, name = principal.partition(":")
    if not colon:
        return (
            f"Could not parse principal from `{principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    if not kind or not name:
        return f"Could not parse principal from `{principal}`: it needs a type and a name, as in User:alice"
    if len(principal) > PRINCIPAL_LENGTH_MAX:
        return f"A principal has at most {PRINCIPAL_LENGTH_MAX} characters"
    return None


def parse_principals(text: str) -> frozenset[str]:
    """The principals in a list with semicolons, as Kafka's `super.users` is."""
    principals = frozenset(part.strip() for part in text.split(";") if part.strip())
    for principal in principals:
        if (reason := reason_against_principal(principal)) is not None:
            raise ValueError(reason)
    return principals
