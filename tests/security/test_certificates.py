"""Certificates and the users that they stand for."""

import pytest

from braidlog.security.certificates import PrincipalRules, distinguished_name

ALICE = {
    "subject": ((("countryName", "DE"),), (("organizationName", "Example, Inc"),), (("commonName", "Alice"),)),
    "subjectAltName": (("DNS", "alice.example.com"), ("URI", "spiffe://example.com/alice")),
}


def test_names_are_written_as_java_writes_them() -> None:
    assert distinguished_name(ALICE) == r"CN=Alice,O=Example\, Inc,C=DE"


def test_several_names_in_one_part_are_no_several_parts() -> None:
    several = {"subject": ((("organizationName", "Example"),), (("commonName", "a"), ("userId", "b")))}
    assert distinguished_name(several) == "CN=a+UID=b,O=Example"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", r"CN=Alice,O=Example\, Inc,C=DE"),
        ("RULE:^CN=(.*?),.*$/$1/", "Alice"),
        ("RULE:^CN=(.*?),.*$/$1/L", "alice"),
        ("RULE:^CN=(.*?),.*$/$1@cluster/U,DEFAULT", "ALICE@CLUSTER"),
        ("RULE:^OU=(.*)$/$1/,RULE:^CN=(.*?),.*$/$1/", "Alice"),
        (r"SAN:spiffe:\/\/example.com\/(.*)/$1/", "alice"),
        (r"SAN:(.*)\.example\.com/$1/", "alice"),
        (r"RULE:^CN=(.*?),(X)?.*$/$1\$$2\/\d/", "Alice$/d"),
        ("RULE:^OU=(.*)$/$1/", None),
    ],
)
def test_the_first_rule_that_matches_counts(rules: str, user: str | None) -> None:
    assert PrincipalRules(rules).user_of(ALICE) == user


@pytest.mark.parametrize("wrong", ["RULE:abc", "NAME", "RULE:(/x/", "RULE:^CN=(.*)$/$2/"])
def test_wrong_rules_are_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        PrincipalRules(wrong)
