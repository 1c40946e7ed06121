"""Patterns over topic names: they match what Python's do, in linear time, and refuse what they cannot do."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.control.groups.topic_pattern import InvalidPattern, TopicPattern

ATOMS = st.sampled_from(["a", "b", "-", r"\.", ".", "[ab]", "[^a]", "[a-c]", r"\d", r"\w", "(?:a|bc)", "(b-)", "0", ""])
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])
PATTERNS = st.lists(st.tuples(ATOMS, REPEATS), max_size=6).map(
    lambda parts: "".join(atom + repeat if atom else "" for atom, repeat in parts)
)
NAMES = st.text("abc-.0", max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(PATTERNS, min_size=1, max_size=3).map("|".join), NAMES)
def test_they_match_as_pythons_do(pattern: str, name: str) -> None:
    assert TopicPattern(pattern).matches(name) == bool(re.fullmatch(pattern, name))


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("^orders$", "orders", True),
        ("orders", "orders-1", False),
        ("(?i)Orders-[A-C]", "oRDERS-b", True),
        ("(?i:a)b", "Ab", True),
        ("(?i:a)b", "AB", False),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        ("[[:alpha:]]+", "abc", True),
        (r"a\x2db", "a-b", True),
        ("(?P<kind>a|b)-.*", "b-7", True),
        ("x{", "x{", True),
        ("[]a]+", "]a", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_some_that_differ_or_are_rare(pattern: str, name: str, matches: bool) -> None:
    assert TopicPattern(pattern).matches(name) is matches


@pytest.mark.parametrize(
    "pattern",
    ["(", "a)", "*", "[a", "[b-a]", r"\1", "(?=a)", "(?<!a)b", "a{3,2}", "a{9999}", "((((a{99}){99}){99}){99})", "\\"],
)
def test_what_is_no_pattern_here_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        TopicPattern(pattern)


def test_no_pattern_takes_long() -> None:
    began_s = time.process_time()
    assert not TopicPattern("(a*)*(a*)*(a|a)*b").matches("a" * 249)
    assert time.process_time() - began_s < 1.0
