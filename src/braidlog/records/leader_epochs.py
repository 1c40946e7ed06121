"""Leader epochs of a partition: the epoch of each of its offsets. Pure.

There are no leaders. An epoch begins when the metadata is restored from a copy that is older than the log: offsets that
were told behind the copy's end are not used again, and clients learn from the epoch that they must look again.
"""

from typing import TypeAlias

LeaderEpochs: TypeAlias = tuple[tuple[int, int], ...]
"""Each epoch of a partition and the offset at which it starts, in order. Never empty."""

FIRST_EPOCH: LeaderEpochs = ((0, 0),)
"""The epochs of a partition whose cluster was never restored."""
NO_EPOCH = (-1, -1)
"""Kafka's answer for an epoch that is not known: no epoch, no offset."""


def current_epoch(epochs: LeaderEpochs) -> int:
    return epochs[-1][0]


def epoch_at(epochs: LeaderEpochs, offset: int) -> int:
    """Return the epoch that an offset belongs to."""
    if len(epochs) == 1:
        return epochs[0][0]
    return next((epoch for epoch, start in reversed(epochs) if start <= offset), epochs[0][0])


def end_of_epoch(epochs: LeaderEpochs, epoch: int, log_end_offset: int) -> tuple[int, int]:
    """Return the newest epoch that is not above `epoch`, and where it ends.

    The rules are Kafka's: an epoch ends where the next one starts, the newest one where the log does.
    """
    newest = epochs[-1][0]
    if epoch < 0 or epoch > newest:
        return NO_EPOCH
    if epoch == newest:
        return newest, log_end_offset
    end_offset = next(start for each, start in epochs if each > epoch)
    return next((each for each, _ in reversed(epochs) if each <= epoch), epoch), end_offset
