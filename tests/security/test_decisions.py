"""ACL decisions against rules written down by hand, and against a slow model on random rules."""

import random

import pytest

from braidlog.security import acls
from braidlog.security.acls import ALL, ALLOW, DENY, GROUP, LITERAL, PREFIXED, READ, TOPIC, WRITE, Acl, AclFilter
from braidlog.security.decisions import AclBook
from braidlog.security.rights import ALL_RIGHTS, AclRights, Authorizer, AuthorizerRules

ALICE, BOB = "User:alice", "User:bob"


def acl(
    name: str,
    operation: int,
    *,
    principal: str = ALICE,
    pattern: int = LITERAL,
    host: str = "*",
    permission: int = ALLOW,
    resource_type: int = TOPIC,
) -> Acl:
    return Acl(resource_type, name, pattern, principal, host, operation, permission)


def book(*rules: Acl) -> AclBook:
    result = AclBook()
    result.load(rules)
    return result


def allows(rules: AclBook, operation: int, name: str, *, principal: str = ALICE, host: str = "10.0.0.1") -> bool | None:
    return rules.decide(principal, host, operation, TOPIC, name)


def test_only_rules_for_the_principal_the_host_the_operation_and_the_name_allow() -> None:
    rules = book(acl("orders", READ, host="10.0.0.1"))
    assert allows(rules, READ, "orders")
    assert not allows(rules, WRITE, "orders")
    assert not allows(rules, READ, "orders", principal=BOB)
    assert not allows(rules, READ, "orders", host="10.0.0.2")
    assert allows(rules, READ, "others") is None
    assert rules.decide(ALICE, "10.0.0.1", READ, GROUP, "orders") is None


def test_a_rule_that_denies_wins() -> None:
    rules = book(acl("*", ALL), acl("pay", READ, pattern=PREFIXED, permission=DENY))
    assert allows(rules, READ, "orders")
    assert not allows(rules, READ, "payments")
    assert allows(rules, WRITE, "payments")


def test_operations_imply_others_but_denials_do_not() -> None:
    assert allows(book(acl("t", READ)), acls.DESCRIBE, "t")
    assert allows(book(acl("t", acls.ALTER_CONFIGS)), acls.DESCRIBE_CONFIGS, "t")
    assert not allows(book(acl("t", acls.CREATE)), acls.DESCRIBE, "t")
    rules = book(acl("t", READ, permission=DENY), acl("t", acls.DESCRIBE))
    assert allows(rules, acls.DESCRIBE, "t")
    assert not allows(book(acl("t", ALL, permission=DENY), acl("t", READ)), READ, "t")


def test_everybody_is_a_principal_too() -> None:
    rules = book(acl("t", READ, principal="User:*"))
    assert allows(rules, READ, "t", principal=BOB)


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([acl("t", WRITE)], True),
        ([acl("t", WRITE, pattern=PREFIXED)], True),
        ([acl("t", READ)], False),
        ([acl("t", WRITE), acl("t", WRITE, permission=DENY)], False),
        ([acl("t", WRITE), acl("*", WRITE, permission=DENY)], False),
        ([acl("tables", WRITE, pattern=PREFIXED), acl("t", WRITE, pattern=PREFIXED, permission=DENY)], False),
        ([acl("t", WRITE, pattern=PREFIXED), acl("tables", WRITE, pattern=PREFIXED, permission=DENY)], True),
        ([acl("*", WRITE), acl("t", WRITE, permission=DENY)], True),
        ([acl("t", ALL, principal="User:*")], True),
    ],
)
def test_any_resource_of_a_type(rules: list[Acl], allowed: bool) -> None:
    assert book(*rules).decide_any(ALICE, "h", WRITE, TOPIC) is allowed


def test_random_rules_decide_as_a_slow_model_does() -> None:
    chance = random.Random(7)
    names, operations = ["*", "a", "ab", "abc", "b"], [READ, WRITE, ALL, acls.DESCRIBE]
    for _ in range(300):
        rules = [
            Acl(
                TOPIC,
                chance.choice(names),
                chance.choice([LITERAL, PREFIXED]),
                chance.choice([ALICE, BOB, "User:*"]),
                chance.choice(["*", "h"]),
                chance.choice(operations),
                chance.choice([ALLOW, ALLOW, DENY]),
            )
            for _ in range(chance.randrange(5))
        ]
        name, operation = chance.choice(names[1:]), chance.choice([READ, WRITE, acls.DESCRIBE])
        assert book(*rules).decide(ALICE, "h", operation, TOPIC, name) == _model(rules, operation, name)


def _model(rules: list[Acl], operation: int, name: str) -> bool | None:
    about = [
        rule
        for rule in rules
        if (rule.pattern_type == PREFIXED and name.startswith(rule.name))
        or (rule.pattern_type == LITERAL and rule.name in ("*", name))
    ]
    mine = [rule for rule in about if rule.principal in (ALICE, "User:*") and rule.host in ("*", "h")]
    if any(rule.permission == DENY and rule.operation in (operation, ALL) for rule in mine):
        return False
    implying = {operation, ALL} | ({READ, WRITE} if operation == acls.DESCRIBE else set())
    if any(rule.permission == ALLOW and rule.operation in implying for rule in mine):
        return True
    return False if about else None


def test_filters_match_literally_or_by_what_concerns_a_name() -> None:
    rules = book(acl("orders", READ), acl("*", READ), acl("ord", READ, pattern=PREFIXED), acl("x", WRITE))
    assert len(rules.find(AclFilter())) == 4
    assert rules.find(AclFilter(name="orders")) == [acl("orders", READ)]
    assert len(rules.find(AclFilter(name="orders", pattern_type=acls.MATCH))) == 3
    assert rules.find(AclFilter(operation=WRITE)) == [acl("x", WRITE)]
    assert rules.find(AclFilter(principal=BOB)) == []


def test_rights_follow_changes_at_once() -> None:
    rules = book(acl("t", READ))
    rights = Authorizer(rules, AuthorizerRules(is_on=True)).rights_of(ALICE, "h")
    assert rights.topic(READ, "t")
    rules.change([], [acl("t", READ)])
    assert not rights.topic(READ, "t")
    rules.change([acl("t", READ)], [])
    assert rights.topic(READ, "t")


def test_nothing_is_allowed_while_the_rules_are_unknown() -> None:
    rules = AclBook()
    rights = AclRights(rules, ALICE, "h", allow_unlisted=True)
    assert not rights.topic(READ, "t")
    assert not rights.allows_any(WRITE, TOPIC)
    rules.load([])
    assert rights.topic(READ, "t")


def test_super_users_and_unlisted_resources() -> None:
    rules = book(acl("t", READ))
    strict = Authorizer(rules, AuthorizerRules(is_on=True, super_users=frozenset([BOB])))
    assert strict.rights_of(BOB, "h") is ALL_RIGHTS
    assert not strict.rights_of(ALICE, "h").topic(READ, "other")
    assert strict.rights_of(ALICE, "h") is strict.rights_of(ALICE, "h")
    lax = Authorizer(rules, AuthorizerRules(is_on=True, allow_unlisted=True)).rights_of(ALICE, "h")
    assert lax.topic(READ, "other")
    assert not lax.topic(WRITE, "t")
    assert Authorizer(rules, AuthorizerRules()).rights_of(ALICE, "h") is ALL_RIGHTS


def test_authorized_operations_are_kafkas_bits() -> None:
    rights = AclRights(book(acl("t", READ)), ALICE, "h", allow_unlisted=False)
    assert rights.operations(TOPIC, "t") == 1 << READ | 1 << acls.DESCRIBE
    assert ALL_RIGHTS.operations(TOPIC, "t") == sum(1 << each for each in (3, 4, 5, 6, 7, 8, 10, 11))


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (acl("", READ), "empty resource name"),
        (acl("t", 1), "Invalid operation 1"),
        (acl("t", READ, pattern=2), "Invalid patternType 2"),
        (acl("t", READ, permission=1), "Invalid permissionType 1"),
        (acl("t", READ, resource_type=1), "Invalid resourceType 1"),
        (acl("t", READ, resource_type=acls.CLUSTER), "kafka-cluster"),
        (acl("t", READ, principal="alice"), "no colon"),
        (acl("t", READ, host=""), "empty host"),
    ],
)
def test_wrong_rules_are_refused_by_name(wrong: Acl, reason: str) -> None:
    assert reason in (acls.reason_against_acl(wrong) or "")
