"""The rules for topic names."""

import re

TOPIC_NAME_CHARS_MAX = 249
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset((OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
"""Topics in which Kafka keeps what the control plane keeps here. They exist for tools that look for them, and stay
empty."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")


def reason_against_topic_name(name: str) -> str | None:
    if not name:
        return "A topic's name cannot be empty."
    if name in (".", ".."):
        return "A topic's name cannot be '.' or '..'."
    if len(name) > TOPIC_NAME_CHARS_MAX:
        return f"A topic's name has at most {TOPIC_NAME_CHARS_MAX} characters, not {len(name)}."
    if _TOPIC_NAME.fullmatch(name) is None:
        return f"Topic name {name!r} has characters other than ASCII letters, digits, '.', '_' and '-'."
    return None
