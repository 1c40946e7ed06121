"""Rights: what one principal may do, with a cache of decisions."""

from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from braidlog.security.acls import CLUSTER, CLUSTER_NAME, GROUP, OPERATIONS_OF, TOPIC, TRANSACTIONAL_ID
from braidlog.security.decisions import AclBook

DECISIONS_MAX = 10_000
"""Decisions kept per principal and host. Past that, the cache begins anew."""


def operation_bits(resource_type: int) -> int:
    """All operations of a type of resource, as the bit set of Kafka's answers."""
    return sum(1 << operation for operation in OPERATIONS_OF[resource_type])


class Rights(Protocol):
    """Answers what a client may do."""

    @property
    def is_limited(self) -> bool:
        """Whether anything may be refused. Where nothing may, hot paths need not ask."""

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether the client may do this."""

    def allows_any(self, operation: int, resource_type: int) -> bool:
        """Whether there may be a resource of the type that the client may do this to."""

    def operations(self, resource_type: int, name: str) -> int:
        """The bit set of all that the client may do to a resource."""

    def topic(self, operation: int, name: str) -> bool: ...

    def group(self, operation: int, group_id: str) -> bool: ...

    def cluster(self, operation: int) -> bool: ...

    def transactional_id(self, operation: int, transactional_id: str) -> bool: ...


class _ByType:
    """The questions of `Rights` by type of resource."""

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        raise NotImplementedError

    def topic(self, operation: int, name: str) -> bool:
        return self.allows(operation, TOPIC, name)

    def group(self, operation: int, group_id: str) -> bool:
        return self.allows(operation, GROUP, group_id)

    def cluster(self, operation: int) -> bool:
        return self.allows(operation, CLUSTER, CLUSTER_NAME)

    def transactional_id(self, operation: int, transactional_id: str) -> bool:
        return self.allows(operation, TRANSACTIONAL_ID, transactional_id)


class AllRights(_ByType):
    """The rights of everybody without an authorizer, and of super users."""

    is_limited = False

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        return True

    def allows_any(self, operation: int, resource_type: int) -> bool:
        return True

    def operations(self, resource_type: int, name: str) -> int:
        return operation_bits(resource_type)


ALL_RIGHTS = AllRights()


class AclRights(_ByType):
    """The rights that ACLs give a principal at a host."""

    is_limited = True

    def __init__(self, book: AclBook, principal: str, host: str, *, allow_unlisted: bool) -> None:
        """With `allow_unlisted`, everything is allowed that no ACL concerns."""
        self._book = book
        self._principal = principal
        self._host = host
        self._allow_unlisted = allow_unlisted
        self._revision = book.revision
        self._decisions: dict[tuple[int, int, str], bool] = {}

    def allows(self, operation: int, resource_type: int, name: str) -> bool:
        if self._revision == self._book.revision:
            decision = self._decisions.get((operation, resource_type, name))
            if decision is not None:
                return decision
        return self._decide(operation, resource_type, name)

    def topic(self, operation: int, name: str) -> bool:
        # As `allows`, once more in full: hot requests ask it.
        if self._revision == self._book.revision:
            decision = self._decisions.get((operation, TOPIC, name))
            if decision is not None:
                return decision
        return self._decide(operation, TOPIC, name)

    def _decide(self, operation: int, resource_type: int, name: str) -> bool:
        book = self._book
        if self._revision != book.revision or len(self._decisions) >= DECISIONS_MAX:
            self._decisions, self._revision = {}, book.revision
        if not book.is_known:
            return False
        decision = book.decide(self._principal, self._host, operation, resource_type, name)
        allowed = self._allow_unlisted if decision is None else decision
        self._decisions[operation, resource_type, name] = allowed
        return allowed

    def allows_any(self, operation: int, resource_type: int) -> bool:
        book = self._book
        if not book.is_known:
            return False
        if self._allow_unlisted and all(acl.resource_type != resource_type for acl in book.acls):
            return True
        return book.decide_any(self._principal, self._host, operation, resource_type)

    def operations(self, resource_type: int, name: str) -> int:
        return sum(
            1 << operation for operation in OPERATIONS_OF[resource_type] if self.allows(operation, resource_type, name)
        )


NO_RIGHTS = AclRights(AclBook(), "", "", allow_unlisted=False)
"""The rights of a client that nobody knows yet."""


@dataclass(frozen=True, slots=True)
class AuthorizerRules:
    """What an operator sets about authorization."""

    is_on: bool = False
    super_users: frozenset[str] = frozenset()
    """Principals that may do everything, whatever the ACLs say."""
    allow_unlisted: bool = False
    """Whether everybody may do everything to resources that no ACL concerns."""


class Authorizer:
    """Gives each connection the rights of its principal.

    Connections of one principal at one host share them, and so their cache.
    """

    def __init__(self, book: AclBook, rules: AuthorizerRules) -> None:
        self._book = book
        self._rules = rules
        self._known: WeakValueDictionary[tuple[str, str], AclRights] = WeakValueDictionary()

    @property
    def is_on(self) -> bool:
        return self._rules.is_on

    def rights_of(self, principal: str, host: str) -> Rights:
        rules = self._rules
        if not rules.is_on or principal in rules.super_users:
            return ALL_RIGHTS
        rights = self._known.get((principal, host))
        if rights is None:
            rights = AclRights(self._book, principal, host, allow_unlisted=rules.allow_unlisted)
            self._known[principal, host] = rights
        return rights
