"""Mistakes in the group coordinator."""

from contextlib import AbstractContextManager
from dataclasses import replace

from kio.schema.errors import ErrorCode

from braidlog.control.groups.consumer import group as consumer_group
from braidlog.control.groups.consumer.group import ConsumerGroup
from braidlog.control.groups.consumer.membership import ConsumerMembership
from braidlog.control.groups.consumer.reconciliation import Step, next_step
from braidlog.control.groups.effects import Effect
from braidlog.sim.mistakes.mistake import mistake, replaced

SCENARIO = "consumer-groups"


@mistake("Gives a partition to a member while another one still has it.", SCENARIO)
def _assign_before_revoked() -> AbstractContextManager[None]:
    return replaced((ConsumerGroup, "is_free", lambda self, partition, member: True))


@mistake("Treats a partition as given up as soon as its reader is told to give it up.", SCENARIO)
def _revoked_when_told() -> AbstractContextManager[None]:
    def hasty(*arguments: object, **options: object) -> Step:
        step = next_step(*arguments, **options)  # type: ignore[arg-type]
        return replace(step, revoking=frozenset())

    return replaced((consumer_group, "next_step", hasty))


@mistake("Accepts commits of members that have left the group or have another epoch.", SCENARIO)
def _stale_epochs_commit() -> AbstractContextManager[None]:
    return replaced((ConsumerMembership, "check_commit", lambda self, request, now_s: ErrorCode.none))


@mistake("Keeps members whose session is over.", SCENARIO)
def _sessions_never_end() -> AbstractContextManager[None]:
    def advance(self: ConsumerMembership, now_s: float) -> list[Effect]:
        self._deadline_s = None
        return []

    return replaced((ConsumerMembership, "advance", advance))


@mistake("Forgets at a restart which member has which partition.", SCENARIO)
def _owners_not_restored() -> AbstractContextManager[None]:
    original = ConsumerGroup.restore.__func__  # type: ignore[attr-defined]

    def restore(cls: type[ConsumerGroup], *arguments: object) -> ConsumerGroup:
        group: ConsumerGroup = original(cls, *arguments)
        group._owners.clear()
        return group

    return replaced((ConsumerGroup, "restore", classmethod(restore)))
