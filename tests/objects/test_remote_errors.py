"""What an S3 server's failures become. A small HTTP server answers as told."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from tests.fakes import FakeClock

from braidlog.objects.open import open_store
from braidlog.objects.store import (
    AlreadyExists,
    Conflict,
    NotFound,
    SlowDown,
    Store,
    StoreDenied,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    TornRead,
)
from braidlog.runtime.entropy import SeededEntropy

OPTIONS = "region=us-east-1&access_key_id=AKIDSECRET&secret_access_key=SAKSECRET&allow_http=true&timeout=60s"


@dataclass
class Server:
    """Answers every request with the same bytes; with none, it closes the connection."""

    port: int = 0
    answer: bytes = b""
    hang: bool = False
    requests: list[str] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def say(self, status: int, body: bytes = b"", *, headers: str = "", length: int | None = None) -> None:
        head = f"HTTP/1.1 {status} Said\r\ncontent-length: {len(body) if length is None else length}\r\n"
        self.answer = f"{head}{headers}connection: close\r\n\r\n".encode() + body

    def fail(self, status: int, code: str) -> None:
        self.say(status, f"<Error><Code>{code}</Code><Message>said</Message></Error>".encode())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(head.partition("\r\n")[0])
            for line in head.lower().split("\r\n"):
                if line.startswith("content-length:"):
                    await reader.readexactly(int(line.partition(":")[2]))
            if self.hang:
                await self.release.wait()
            writer.write(self.answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    yield server
    server.release.set()
    listener.close()
    await listener.wait_closed()


@pytest.fixture
def store(server: Server, clock: FakeClock, entropy: SeededEntropy) -> Store:
    url = f"s3://bucket/prefix?endpoint=http://127.0.0.1:{server.port}&{OPTIONS}"
    return open_store(url, clock=clock, entropy=entropy, retry=None)


@pytest.mark.parametrize(
    ("status", "code", "reading", "writing"),
    [
        (503, "SlowDown", SlowDown, SlowDown),
        (503, "ServiceUnavailable", SlowDown, SlowDown),
        (429, "TooManyRequests", SlowDown, SlowDown),
        (500, "InternalError", StoreUnavailable, StoreTimeout),
        (502, "BadGateway", StoreUnavailable, StoreTimeout),
        (403, "AccessDenied", StoreDenied, StoreDenied),
        (403, "SignatureDoesNotMatch", StoreDenied, StoreDenied),
        (401, "Unauthorized", StoreDenied, StoreDenied),
        (404, "NoSuchBucket", StoreDenied, StoreDenied),
        (404, "NoSuchKey", NotFound, None),
        (301, "PermanentRedirect", StoreDenied, StoreDenied),
        (400, "AuthorizationHeaderMalformed", StoreDenied, StoreDenied),
        (412, "PreconditionFailed", None, AlreadyExists),
        (409, "ConditionalRequestConflict", None, StoreUnavailable),
        (416, "InvalidRange", TornRead, None),
    ],
)
async def test_statuses(
    server: Server,
    store: Store,
    status: int,
    code: str,
    reading: type[StoreError] | None,
    writing: type[StoreError] | None,
) -> None:
    server.fail(status, code)
    if reading is not None:
        for read in [store.get("k"), store.get_range("k", 0, 5)]:
            with pytest.raises(StoreError) as caught:
                await read
            assert type(caught.value) is reading
    if writing is not None:
        with pytest.raises(StoreError) as caught:
            await store.put("k", b"data")
        assert type(caught.value) is writing
        for text in [str(caught.value), caught.value.help]:
            assert "SECRET" not in text
        if writing is StoreDenied:
            assert caught.value.help


async def test_a_refused_update_is_a_conflict(server: Server, store: Store) -> None:
    for status, code in [(412, "PreconditionFailed"), (404, "NoSuchKey")]:
        server.fail(status, code)
        with pytest.raises(Conflict):
            await store.update("k", b"data", etag='"abc"')
    server.fail(409, "ConditionalRequestConflict")
    with pytest.raises(StoreUnavailable):
        await store.update("k", b"data", etag='"abc"')


async def test_one_call_is_one_request(server: Server, store: Store) -> None:
    server.fail(503, "SlowDown")
    with pytest.raises(SlowDown):
        await store.put("k", bytes(6 << 20))
    assert server.requests == ["PUT /bucket/prefix/k HTTP/1.1"]


async def test_a_closed_connection_leaves_a_write_unknown(server: Server, store: Store) -> None:
    server.answer = b""
    with pytest.raises(StoreTimeout):
        await store.put("k", b"data")
    with pytest.raises(StoreError) as caught:
        await store.get("k")
    assert caught.value.retriable


async def test_no_answer_is_a_timeout(server: Server, clock: FakeClock, entropy: SeededEntropy) -> None:
    server.hang = True
    url = f"s3://bucket?endpoint=http://127.0.0.1:{server.port}&{OPTIONS.replace('timeout=60s', 'timeout=300ms')}"
    store = open_store(url, clock=clock, entropy=entropy, retry=None)
    results = await asyncio.gather(store.put("k", b"x"), store.get("k"), store.list(""), return_exceptions=True)
    assert [type(result) for result in results] == [StoreTimeout] * 3


async def test_a_short_answer_is_torn(server: Server, store: Store) -> None:
    meta = 'etag: "abc"\r\nlast-modified: Wed, 21 Oct 2015 07:28:00 GMT\r\n'
    server.say(200, b"short", headers=meta, length=100)
    with pytest.raises(TornRead):
        await store.get("k")
    server.say(206, b"12345", headers=f"{meta}content-range: bytes 0-4/5\r\n")
    with pytest.raises(TornRead):
        await store.get_range("k", 0, 10)


async def test_nobody_listens(clock: FakeClock, entropy: SeededEntropy) -> None:
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    url = f"s3://bucket?endpoint=http://127.0.0.1:{port}&{OPTIONS}"
    store = open_store(url, clock=clock, entropy=entropy, retry=None)
    for call in [store.put("k", b"x"), store.get("k"), store.head("k"), store.list(""), store.delete(["k"])]:
        with pytest.raises(StoreUnavailable) as caught:
            await call
        assert "endpoint" in caught.value.help
