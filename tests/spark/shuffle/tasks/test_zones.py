"""How an executor learns its zone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from braidlog.spark.shuffle.tasks.zones import METADATA_VARIABLE, ZONE_VARIABLE, cloud_zone, zone_of_environment

TOKEN = "a-token"


@contextmanager
def metadata(answers: dict[str, tuple[str, str]]) -> Iterator[str]:
    """A cloud's metadata: for each path, the header that it wants, and its answer."""

    class Answers(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            header, text = answers.get(self.path.partition("?")[0], ("", ""))
            is_known = bool(text) and header in self.headers
            self.send_response(200 if is_known else 404)
            self.end_headers()
            self.wfile.write(text.encode() if is_known else b"")

        do_GET = do_PUT = _answer  # noqa: N815 - the base class's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


CLOUDS = {
    "amazon": {
        "/latest/api/token": ("X-aws-ec2-metadata-token-ttl-seconds", TOKEN),
        "/latest/meta-data/placement/availability-zone": ("X-aws-ec2-metadata-token", "us-east-1a"),
    },
    "google": {"/computeMetadata/v1/instance/zone": ("Metadata-Flavor", "projects/123/zones/us-east-1a")},
    "microsoft": {"/metadata/instance/compute/zone": ("Metadata", "us-east-1a\n")},
}


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_clouds_answer(cloud: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Patience for a busy machine. A machine in a cloud answers within milliseconds.
    monkeypatch.setattr("braidlog.spark.shuffle.tasks.zones.ANSWER_S_MAX", 60.0)
    with metadata(CLOUDS[cloud]) as address:
        assert zone_of_environment({METADATA_VARIABLE: address}, ask_cloud=True) == "us-east-1a"
        assert zone_of_environment({METADATA_VARIABLE: address}, ask_cloud=False) == ""
        assert zone_of_environment({METADATA_VARIABLE: address, ZONE_VARIABLE: "b"}, ask_cloud=True) == "b"
    cloud_zone.cache_clear()


@pytest.mark.parametrize("answer", ["", "x" * 100, "line\nline", "ä"])
def test_what_is_no_zone_is_not_taken_for_one(answer: str) -> None:
    with metadata({"/computeMetadata/v1/instance/zone": ("Metadata-Flavor", answer)}) as address:
        assert cloud_zone(address) == ""
    assert zone_of_environment({METADATA_VARIABLE: ""}, ask_cloud=True) == ""
    assert cloud_zone("127.0.0.1:1") == ""
    cloud_zone.cache_clear()
