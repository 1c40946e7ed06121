"""Answers that are kept for a while."""

from tests.fakes import FakeClock

from braidlog.console.cluster import _Kept


async def test_an_answer_that_took_long_is_kept_longer() -> None:
    clock, kept, asked = FakeClock(), _Kept[int](2.0), [0]

    async def ask() -> int:
        asked[0] += 1
        clock.advance(1.0)
        return asked[0]

    assert await kept.fresh(clock, ask) == 1
    clock.advance(19.0)
    assert await kept.fresh(clock, ask) == 1
    clock.advance(2.0)
    assert await kept.fresh(clock, ask) == 2
    kept.forget()
    assert await kept.fresh(clock, ask) == 3
