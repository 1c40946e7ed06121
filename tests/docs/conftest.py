"""One Braidlog for all that the docs and examples show."""

from collections.abc import Iterator

import pytest

from braidlog.node.children import BraidProcess
from braidlog.runtime.clock import SystemClock


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A `braid up` with what the pages take for granted: the addresses and the bucket that they name."""
    folder = tmp_path_factory.mktemp("up")
    store = f"file://{folder}/store"
    arguments = ["up", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--store", store]
    arguments += ["--metadata", f"sqlite://{folder}/meta.db", "-s", "control_listen=127.0.0.1:0"]
    with BraidProcess("up", arguments, folder, SystemClock()) as process:
        yield {
            "127.0.0.1:9092": process.addresses["kafka"],
            "127.0.0.1:9190": process.addresses["control"],
            "127.0.0.1:9404": process.addresses["metrics"],
            "s3://bucket/prefix": store,
        }


@pytest.fixture
def clean_places(places: dict[str, str]) -> Iterator[dict[str, str]]:
    """The same, without the topics that a test made: another one may create a topic of the same name."""
    from confluent_kafka.admin import AdminClient

    yield places
    admin = AdminClient({"bootstrap.servers": places["127.0.0.1:9092"]})
    topics = [name for name in admin.list_topics(timeout=60).topics if not name.startswith("__")]
    for deleted in admin.delete_topics(topics).values() if topics else ():
        deleted.result(60)
