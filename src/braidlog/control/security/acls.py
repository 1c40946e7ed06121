"""ACLs: checked, stored and published here, and enforced by agents."""

from kio.schema.errors import ErrorCode

from braidlog.control.foundation import Foundation
from braidlog.control.interface import AclOutcomes, AclsChanged, CreateAcls, DeleteAcls, DeletedAcls, Outcome
from braidlog.control.metadata.store import Transaction
from braidlog.security.acls import Acl, reason_against_acl

ACLS_MAX = 20_000
"""The limit on ACLs: every agent has all of them in memory."""

_COLUMNS = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")
_INSERT = f"INSERT INTO acls ({', '.join(_COLUMNS)}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_DELETE = f"DELETE FROM acls WHERE {' AND '.join(f'{column} = ?' for column in _COLUMNS)}"


class Acls:
    """Knows all ACLs. Reads are from memory.

    A change takes the state lock, is written durably, and then becomes visible and is published.
    """

    def __init__(self, foundation: Foundation) -> None:
        self._metadata = foundation.metadata
        self._state_lock = foundation.state_lock
        self._feed = foundation.feed
        self._acls: dict[Acl, None] = {}

    async def load(self) -> None:
        rows = await self._metadata.read(
            lambda tx: tx.query(f"SELECT {', '.join(_COLUMNS)} FROM acls ORDER BY {', '.join(_COLUMNS)}")
        )
        self._acls = {Acl(*row): None for row in rows}

    @property
    def acls(self) -> list[Acl]:
        return list(self._acls)

    async def create(self, request: CreateAcls) -> AclOutcomes:
        """Add ACLs. One that is there already is no error."""
        async with self._state_lock:
            outcomes: list[Outcome] = []
            added: dict[Acl, None] = {}
            for acl in request.acls:
                reason = reason_against_acl(acl)
                if reason is None and len(self._acls) + len(added) >= ACLS_MAX and acl not in self._acls:
                    reason = f"There are {ACLS_MAX} ACLs already: use prefixed patterns, and delete what is not needed."
                if reason is None and acl not in self._acls:
                    added[acl] = None
                outcomes.append(Outcome(0) if reason is None else Outcome(int(ErrorCode.invalid_request), reason))
            if added:
                await self._metadata.plan(lambda tx: tx.executemany(_INSERT, list(added)))
                self._acls |= added
                self._feed.publish([AclsChanged(list(added), [])])
            return AclOutcomes(outcomes)

    async def delete(self, request: DeleteAcls) -> DeletedAcls:
        """Delete all ACLs that match one of the filters."""
        async with self._state_lock:
            deleted = [[acl for acl in self._acls if wanted.matches(acl)] for wanted in request.filters]
            gone = dict.fromkeys(acl for acls in deleted for acl in acls)
            if gone:

                def delete(tx: Transaction) -> None:
                    tx.executemany(_DELETE, list(gone))

                await self._metadata.plan(delete)
                self._acls = {acl: None for acl in self._acls if acl not in gone}
                self._feed.publish([AclsChanged([], list(gone))])
            return DeletedAcls(deleted)
