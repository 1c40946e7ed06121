"""Checks of jobs that no history shows: kept leases, and clean partitions."""

from typing import TYPE_CHECKING

from braidlog.sim.checks.compaction import key_of
from braidlog.sim.history import FinalRead

if TYPE_CHECKING:
    from braidlog.sim.world import World


class LeaseLost(Exception):
    """A worker has lost a lease although nothing failed."""


class Unclean(Exception):
    """A key is twice in the part of a log that the control plane takes for compacted."""


async def watch_leases(world: "World", seconds: float) -> None:
    """Check, while nothing fails, that no job goes to another worker.

    Jobs that nobody has when they are first seen may still be taken once.
    """
    attempts: dict[int, int] = {}
    for _ in range(int(seconds)):
        await world.sleep(1.0)
        control = world.cluster.control
        assert control is not None
        for job in control.parts.jobs.open.values():
            is_leased = control.parts.jobs.leased(job.job_id, job.token) is not None
            known = attempts.setdefault(job.job_id, job.listing.attempts + (not is_leased))
            if job.listing.attempts > known:
                raise LeaseLost(f"job {job.job_id} was taken {job.listing.attempts} times: {job.listing.detail}")


async def clean_end_offsets(world: "World") -> dict[tuple[str, int], int]:
    """Return how far the control plane takes each partition for compacted."""
    control = world.cluster.control
    assert control is not None
    rows = await control._metadata.read(
        lambda tx: tx.query("SELECT partition_id, clean_end_offset FROM partition_compactions")
    )
    ends = {int(row[0]): int(row[1]) for row in rows}
    return {
        (topic.info.name, state.index): ends[state.partition_id]
        for topic in control.parts.catalog.topics.values()
        for state in topic.partitions
        if state.partition_id in ends
    }


def check_clean(world: "World", ends: dict[tuple[str, int], int]) -> None:
    """Check that no key is twice in the clean part of a log.

    The logs were read after `ends` were looked up.
    """
    for read in world.history.operations:
        if not isinstance(read, FinalRead):
            continue
        end_offset = ends.get((read.topic, read.partition), 0)
        keys = [key_of(value) for offset, value in read.records if offset < end_offset]
        twice = sorted({key for key in keys if keys.count(key) > 1})
        if twice:
            raise Unclean(f"{read.topic}/{read.partition} is clean below {end_offset}, but has {twice[0]!r} twice")
