"""Settings of who may connect to an agent and what they may do."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


def _principals(text: str) -> str:
    for part in filter(None, map(str.strip, text.split(";"))):
        kind, _, name = part.partition(":")
        if not kind or not name:
            raise ValueError(f"names {part!r}, which is no principal: write User:name, with ; between several")
    return text


Principals = Annotated[str, AfterValidator(_principals)]


class SecuritySettings(BaseModel):
    """Who may connect, and what they may do."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    authorizer: Literal["none", "acl"] = Field("none", examples=["acl"])
    """none: every client may do everything. acl: only what ACLs allow (`braid acl`)."""
    super_users: Principals = Field("", examples=["User:admin;User:operator"])
    """Principals that may do everything, whatever ACLs say; separated by semicolons."""
    allow_everyone_if_no_acl_found: bool = Field(False, examples=["false"])
    """With authorizer=acl: whether all clients may do everything to a resource that no ACL concerns."""
