"""Points in time as people write them."""

import pytest

from braidlog.clients.errors import WrongUsage
from braidlog.clients.timestamps import milliseconds


def test_times() -> None:
    assert milliseconds("-T", "1700000000000") == 1_700_000_000_000
    assert milliseconds("-T", "2023-11-14T22:13:20") == milliseconds("-T", "2023-11-15T00:13:20+02:00")
    with pytest.raises(WrongUsage, match="is not a time"):
        milliseconds("-T", "noon")
