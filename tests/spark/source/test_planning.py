"""Plans of tasks: everything is read once, in tasks of the right size."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.spark.source.planning import COMBINED_BYTES_MAX, LogSlice, Piece, join_pieces, plan_tasks


def a_slice(partition: int, lengths: list[int]) -> LogSlice:
    pieces = tuple(Piece(10 * i, 10 * i + 10, f"object-{i}", 0, length) for i, length in enumerate(lengths))
    return LogSlice("t", partition, 100 + partition, 0, 10 * len(lengths), pieces)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 3 * COMBINED_BYTES_MAX), max_size=8), max_size=6),
    st.integers(1, 40_000_000),
    st.integers(0, 12),
)
def test_tasks_cover_everything_once_and_in_order(
    lengths: list[list[int]], task_bytes_max: int, tasks_min: int
) -> None:
    slices = [a_slice(partition, each) for partition, each in enumerate(lengths)]
    tasks = plan_tasks(slices, task_bytes_max=task_bytes_max, tasks_min=tasks_min)
    parts = [part for task in tasks for part in task]
    for whole in slices:
        of_partition = [part for part in parts if part.partition == whole.partition]
        assert tuple(piece for part in of_partition for piece in part.pieces) == whole.pieces
        bounds = [(part.start_offset, part.end_offset) for part in of_partition]
        if bounds:
            assert bounds[0][0] == whole.start_offset
            assert bounds[-1][1] == whole.end_offset
            assert all(before[1] == after[0] for before, after in pairwise(bounds))
    for task in tasks:
        size_bytes = sum(part.size_bytes for part in task)
        assert len(task) == 1 or size_bytes <= COMBINED_BYTES_MAX
        if len(task) == 1 and len(task[0].pieces) > 1:
            assert size_bytes <= task_bytes_max + max(piece.length for piece in task[0].pieces)


def test_as_many_tasks_as_asked_for() -> None:
    slices = [a_slice(partition, [1000] * 4) for partition in range(3)]
    assert len(plan_tasks(slices, task_bytes_max=1 << 30, tasks_min=0)) == 1
    assert len(plan_tasks(slices, task_bytes_max=1 << 30, tasks_min=6)) == 6
    assert len(plan_tasks(slices, task_bytes_max=1 << 30, tasks_min=100)) == 12
    assert plan_tasks([], task_bytes_max=1, tasks_min=5) == []


@settings(max_examples=80, deadline=None)
@given(st.lists(st.lists(st.integers(1, 3 * COMBINED_BYTES_MAX), max_size=6), max_size=4), st.integers(1, 25))
def test_no_task_has_more_records_than_allowed(lengths: list[list[int]], task_records_max: int) -> None:
    slices = [a_slice(partition, each) for partition, each in enumerate(lengths)]
    tasks = plan_tasks(slices, task_bytes_max=1 << 30, tasks_min=0, task_records_max=task_records_max)
    read: dict[int, list[int]] = {}
    for task in tasks:
        offsets = [(part.partition, each) for part in task for each in range(part.start_offset, part.end_offset)]
        assert 0 < len(offsets) <= task_records_max
        for partition, offset in offsets:
            read.setdefault(partition, []).append(offset)
        for part in task:
            covered = {each for piece in part.pieces for each in range(piece.base_offset, piece.end_offset)}
            assert covered.issuperset(range(part.start_offset, part.end_offset))
    assert read == {each.partition: list(range(each.end_offset)) for each in slices if each.pieces}


@settings(max_examples=80, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 1000), st.integers(1, 100)),
        max_size=12,
        unique_by=lambda x: x[:2],
    ),
    st.integers(0, 50),
)
def test_neighbours_are_fetched_together(places: list[tuple[str, int, int]], gap: int) -> None:
    pieces = [Piece(0, 1, key, position, length) for key, position, length in places]
    joined = join_pieces(pieces, gap_bytes_max=gap)
    assert joined.keys() == set(pieces)
    for piece, wide in joined.items():
        assert piece.key == wide.key
        assert wide.start <= piece.position
        assert piece.position + piece.length <= wide.end
    ranges = sorted(set(joined.values()))
    assert all(before.key != after.key or before.end + gap < after.start for before, after in pairwise(ranges))
