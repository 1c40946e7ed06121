"""Decisions: which ACLs concern a request, and whether they allow it.

The rules are Kafka's. A rule that denies wins over all that allow. An operation is allowed by a rule for it, for ALL,
or for an operation that implies it; only a rule for it or for ALL denies it.
"""

from collections.abc import Iterable, Iterator

from braidlog.security.acls import ALL, ALLOW, DENY, IMPLIED_BY, LITERAL, PREFIXED, WILDCARD, Acl, AclFilter
from braidlog.security.principals import EVERY_USER


class AclBook:
    """All ACLs of the cluster, ordered for decisions."""

    def __init__(self) -> None:
        self.revision = 0
        """Grows with every change. Decisions of an earlier revision count no more."""
        self.is_known = False
        """Whether the rules were ever loaded. Until then nothing is allowed."""
        self._acls: tuple[Acl, ...] = ()
        self._literal: dict[tuple[int, str], list[Acl]] = {}
        self._prefixed: dict[tuple[int, str], list[Acl]] = {}
        self._prefix_lengths: dict[int, tuple[int, ...]] = {}

    @property
    def acls(self) -> tuple[Acl, ...]:
        return self._acls

    def load(self, acls: Iterable[Acl]) -> None:
        """Replace all rules by these."""
        self._acls = tuple(acls)
        self._literal, self._prefixed = {}, {}
        lengths: dict[int, set[int]] = {}
        for acl in self._acls:
            by_name = self._literal if acl.pattern_type == LITERAL else self._prefixed
            by_name.setdefault((acl.resource_type, acl.name), []).append(acl)
            if acl.pattern_type == PREFIXED:
                lengths.setdefault(acl.resource_type, set()).add(len(acl.name))
        self._prefix_lengths = {kind: tuple(sorted(each)) for kind, each in lengths.items()}
        self.is_known = True
        self.revision += 1

    def change(self, added: Iterable[Acl], removed: Iterable[Acl]) -> None:
        gone = frozenset(removed)
        self.load(dict.fromkeys([*(acl for acl in self._acls if acl not in gone), *added]))

    def find(self, wanted: AclFilter) -> list[Acl]:
        return [acl for acl in self._acls if wanted.matches(acl)]

    def _concerning(self, resource_type: int, name: str) -> Iterator[Acl]:
        """The rules whose pattern matches a resource."""
        yield from self._literal.get((resource_type, name), ())
        if name != WILDCARD:
            yield from self._literal.get((resource_type, WILDCARD), ())
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                break
            yield from self._prefixed.get((resource_type, name[:length]), ())

    def decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool | None:
        """Whether the rules allow an operation; None if no rule concerns the resource."""
        allowing = (operation, ALL, *IMPLIED_BY.get(operation, ()))
        concerned, allowed = False, False
        for acl in self._concerning(resource_type, name):
            concerned = True
            if acl.principal not in (principal, EVERY_USER) or acl.host not in (host, WILDCARD):
                continue
            if acl.permission == DENY and acl.operation in (operation, ALL):
                return False
            allowed = allowed or (acl.permission == ALLOW and acl.operation in allowing)
        return allowed if concerned else None

    def decide_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether there is any resource of a type for which the rules allow an operation.

        A rule that allows counts if no rule denies the same or more.
        """
        mine = [
            acl
            for acl in self._acls
            if acl.resource_type == resource_type
            and acl.principal in (principal, EVERY_USER)
            and acl.host in (host, WILDCARD)
            and acl.operation in (operation, ALL)
        ]
        denied = [acl for acl in mine if acl.permission == DENY]
        return any(acl.permission == ALLOW and not any(_covers(each, acl) for each in denied) for acl in mine)


def _covers(wide: Acl, narrow: Acl) -> bool:
    """Whether a pattern matches everything that another one matches."""
    if wide.pattern_type == LITERAL:
        return wide.name == WILDCARD or (narrow.pattern_type == LITERAL and wide.name == narrow.name)
    return not (narrow.pattern_type == LITERAL and narrow.name == WILDCARD) and narrow.name.startswith(wide.name)
