"""One `braid up` for all tests of the command."""

from collections.abc import Iterator

import pytest
from tests.cli.running import started


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("up")
    metadata = f"sqlite://{folder}/new/folder/meta.db"
    with started("up", folder, "--listen", "127.0.0.1:0", "--metadata", metadata, "-s", "num.partitions=3") as process:
        yield process.addresses["kafka"]
