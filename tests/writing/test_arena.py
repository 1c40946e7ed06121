"""The arena: aligned memory that is used again only when nobody can see it any more."""

import ctypes

from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.writing.arena import ALIGNMENT_BYTES, Arena

REGION = 16 * ALIGNMENT_BYTES
FREE_REGIONS_MAX = 8


def make_arena() -> Arena:
    return Arena(free_bytes_max=FREE_REGIONS_MAX * REGION, region_bytes=REGION)


def address(view: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(view))


def test_memory_is_aligned_and_of_the_size_asked_for() -> None:
    arena = make_arena()
    for size in (1, 5000, REGION // 2, REGION, 3 * REGION):
        view = arena.take(size)
        assert len(view) == size
        assert address(view) % ALIGNMENT_BYTES == 0


def test_a_region_is_used_again_when_its_last_view_is_gone() -> None:
    arena = make_arena()
    for _ in range(200):
        arena.take(REGION // 2)
    assert arena.region_count <= 2


def test_a_slice_of_a_slice_keeps_its_region() -> None:
    arena = make_arena()
    view = arena.take(REGION // 2)
    view[:] = b"x" * len(view)
    kept = view.toreadonly()[10:][:5]
    del view
    for _ in range(50):
        other = arena.take(REGION // 2)
        other[:] = b"y" * len(other)
    assert bytes(kept) == b"xxxxx"


def test_what_is_free_for_long_goes_back_to_the_system() -> None:
    arena = make_arena()
    views = [arena.take(REGION // 2) for _ in range(100)]
    assert arena.region_count == 50
    views.clear()
    for _ in range(3):
        arena.take(REGION // 2)
    assert arena.region_count <= FREE_REGIONS_MAX + 3


@given(st.lists(st.tuples(st.integers(1, REGION), st.integers(0, 9)), max_size=60))
@settings(max_examples=50)
def test_no_two_living_views_overlap(steps: list[tuple[int, int]]) -> None:
    arena = make_arena()
    living: list[tuple[memoryview, int]] = []
    for number, (size, drop) in enumerate(steps):
        view = arena.take(size)
        view[:] = bytes([number % 251]) * size
        living.append((view, number % 251))
        if drop < 6 and living:
            living.pop(drop % len(living))
        del view
        assert all(bytes(view) == bytes([mark]) * len(view) for view, mark in living)
