"""Access rules (ACLs) and the credentials of users."""

from typing import Protocol

from braidlog.control.interface.base import Message
from braidlog.control.interface.catalog import Outcome
from braidlog.control.interface.feed import ScramCredential
from braidlog.security.acls import Acl, AclFilter


class CreateAcls(Message, frozen=True):
    acls: list[Acl]


class AclOutcomes(Message, frozen=True):
    """The outcome of each ACL to create, in order."""

    outcomes: list[Outcome]


class DeleteAcls(Message, frozen=True):
    filters: list[AclFilter]


class DeletedAcls(Message, frozen=True):
    """The ACLs that each filter has matched, in order. All of them are gone."""

    deleted: list[list[Acl]]


class AlterCredentials(Message, frozen=True):
    removed: list[tuple[str, int]]
    """Users and mechanisms."""
    changed: list[ScramCredential]


class CredentialOutcomes(Message, frozen=True):
    """The outcome of each removal, then of each change, in order.

    If one fails, nothing is changed for that user.
    """

    outcomes: list[Outcome]


class SecurityPlane(Protocol):
    async def create_acls(self, request: CreateAcls, *, timeout_s: float | None = None) -> AclOutcomes: ...
    async def delete_acls(self, request: DeleteAcls, *, timeout_s: float | None = None) -> DeletedAcls: ...
    async def alter_credentials(
        self, request: AlterCredentials, *, timeout_s: float | None = None
    ) -> CredentialOutcomes: ...
