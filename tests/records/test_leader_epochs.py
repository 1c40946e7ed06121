"""Leader epochs: which offsets belong to which, and where each ends."""

import pytest

from braidlog.records.leader_epochs import FIRST_EPOCH, LeaderEpochs, current_epoch, end_of_epoch, epoch_at

TWICE: LeaderEpochs = ((0, 0), (3, 100), (4, 250))


@pytest.mark.parametrize(("offset", "epoch"), [(0, 0), (99, 0), (100, 3), (249, 3), (250, 4), (10_000, 4)])
def test_an_offset_belongs_to_the_epoch_that_started_last_before_it(offset: int, epoch: int) -> None:
    assert epoch_at(TWICE, offset) == epoch
    assert epoch_at(FIRST_EPOCH, offset) == 0


@pytest.mark.parametrize(
    ("epoch", "end"), [(0, (0, 100)), (1, (0, 100)), (3, (3, 250)), (4, (4, 300)), (5, (-1, -1)), (-1, (-1, -1))]
)
def test_an_epoch_ends_where_the_next_starts_and_the_newest_where_the_log_does(
    epoch: int, end: tuple[int, int]
) -> None:
    assert end_of_epoch(TWICE, epoch, 300) == end
    assert current_epoch(TWICE) == 4


def test_an_epoch_before_the_first_ends_where_the_first_starts() -> None:
    assert end_of_epoch(((4, 0),), 2, 300) == (2, 0)
