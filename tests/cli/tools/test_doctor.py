"""What `braid doctor` says of a store, a clock or an address that will not do: what is wrong, and what helps."""

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from tests.fakes import FakeClock
from typer.testing import CliRunner

from braidlog.cli.errors import explain
from braidlog.cli.main import app
from braidlog.cli.output import OutputFormat
from braidlog.cli.tools.doctor import CLOCK_SKEW_MS_MAX, run_doctor
from braidlog.objects.store import Blob, Bytes, ListPage, ObjectMeta, Store, StoreDenied, StoreUnavailable
from braidlog.objects.wrapper import Operation, Request, StoreWrapper, T

FOUND_IN_MEMORY = {"store durable", "metadata durable"}
"""What every doctor here finds beside what it is tested for: store and metadata are in memory."""


class PlainStore(StoreWrapper):
    """Passes everything on. Each test store does one thing differently."""

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        return await call()


class ReplacingStore(PlainStore):
    """Takes a create-only put for a put."""

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        return await super().put(key, data, overwrite=True)


class UnconditionalStore(PlainStore):
    """Takes a conditional update for a put."""

    async def update(self, key: str, data: Bytes, *, etag: str) -> str | None:
        return await self.inner.put(key, data, overwrite=True)


class UntaggedStore(PlainStore):
    """Tells no ETags."""

    async def put(self, key: str, data: Bytes, *, overwrite: bool = False) -> str | None:
        await super().put(key, data, overwrite=overwrite)
        return None


class ForgetfulListing(PlainStore):
    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> ListPage:
        return ListPage((), None)


class ForeignBytes(PlainStore):
    async def get(self, key: str) -> Blob:
        return Blob(b"else", (await super().get(key)).etag)


class SkewedStore(PlainStore):
    """Its clock is off by so much."""

    def __init__(self, inner: Store, skew_ms: int) -> None:
        super().__init__(inner)
        self._skew_ms = skew_ms

    async def head(self, key: str) -> ObjectMeta:
        found = await super().head(key)
        return replace(found, modified_ms=found.modified_ms + self._skew_ms)


class KeepingStore(PlainStore):
    """Deletes nothing, and does not say so."""

    async def delete(self, keys: Sequence[str]) -> None:
        return


class FailingStore(StoreWrapper):
    """Fails at everything, or at one kind of request."""

    def __init__(self, inner: Store, error: Exception, operation: Operation | None = None) -> None:
        super().__init__(inner)
        self._error = error
        self._operation = operation

    async def _around(self, request: Request, call: Callable[[], Awaitable[T]]) -> T:
        if self._operation in (None, request.operation):
            raise self._error
        return await call()


def doctor(capsys: pytest.CaptureFixture[str], *wrap: Callable[[Store], Store], **settings: str) -> dict[str, str]:
    """The checks that failed, with detail and help in one; the exit code must fit, in text as in JSON."""
    chosen = {"store_url": "memory://", "metadata_url": "sqlite://", "listen": "127.0.0.1:0", **settings}
    arguments = [f"{name}={value}" for name, value in chosen.items()]
    assert run_doctor(None, arguments, OutputFormat.JSON, clock=FakeClock(), wrap=wrap) == 1
    account = json.loads(capsys.readouterr().out)
    assert not account["ok"]
    failed = [check for check in account["checks"] if not check["ok"]]
    assert all(check["detail"] and check["advice"] for check in failed)
    assert run_doctor(None, arguments, OutputFormat.TEXT, clock=FakeClock(), wrap=wrap) == 1
    text = capsys.readouterr().out
    assert text.count("FAIL") == text.count("              help: ") == len(failed)
    assert f"{len(account['checks']) - len(failed)} checks passed, {len(failed)} failed" in text
    for check in failed:
        assert check["check"] in text
        assert f"help: {check['advice']}\n" in text
    found = {check["check"]: f"{check['detail']}. {check['advice']}" for check in failed}
    assert found.keys() >= FOUND_IN_MEMORY
    return {check: says for check, says in found.items() if check not in FOUND_IN_MEMORY}


@pytest.mark.parametrize(
    ("store", "check", "says", "helps"),
    [
        (ReplacingStore, "conditional create", "a create-only put replaced an object", "If-None-Match"),
        (UnconditionalStore, "conditional update", "an update with an old ETag went through", "If-Match"),
        (UntaggedStore, "conditional update", "puts return no ETag", "If-Match"),
        (ForgetfulListing, "store readable", "missing in the listing", "listings are consistent"),
        (ForeignBytes, "store readable", "came back with other bytes", "Do not use this store"),
        (KeepingStore, "store deletable", "a deleted object is still there", "Allow deletes"),
        (
            partial(FailingStore, error=StoreDenied("no", help="Grant it."), operation=Operation.DELETE),
            "store deletable",
            "no",
            "Grant it",
        ),
    ],
)
def test_each_fault_of_a_store_is_told_and_nothing_else(
    store: Callable[[Store], Store], check: str, says: str, helps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctor(capsys, store)
    assert list(found) == [check]
    assert says in found[check]
    assert helps in found[check]


@pytest.mark.parametrize("direction", [-1, 1])
def test_a_clock_that_is_far_off_is_told_and_one_that_is_a_little_off_is_not(
    direction: int, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctor(capsys, partial(SkewedStore, skew_ms=direction * 3_600_000))
    assert list(found) == ["clock"]
    assert "differ by 3599.0 s" in found["clock"]
    assert "NTP" in found["clock"]
    assert doctor(capsys, partial(SkewedStore, skew_ms=direction * CLOCK_SKEW_MS_MAX)) == {}


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("connection refused", help="Does it answer?"), StoreDenied("403", help="Check the credentials.")],
    ids=["unreachable", "denied"],
)
def test_a_store_that_takes_nothing_is_told_once(error: StoreUnavailable, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor(capsys, partial(FailingStore, error=error))
    assert found == {"store writable": f"{error}. {error.help}"}


def test_a_store_where_nobody_answers_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    url = "s3://bucket?endpoint=http://127.0.0.1:1&allow_http=true&region=r&access_key_id=a&secret_access_key=b"
    assert run_doctor(None, [f"store_url={url}", "listen=127.0.0.1:0"], OutputFormat.TEXT, clock=FakeClock()) == 1
    said = capsys.readouterr().out
    assert "FAIL  store writable" in said
    assert "help: Is the endpoint of s3://bucket?endpoint=http://127.0.0.1:1" in said
    assert "conditional" not in said, "what cannot be written to is not examined further"


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 64])
def test_an_advertised_name_without_an_address_is_told(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = doctor(capsys, advertised=f"{host}:9092")
    assert list(found) == ["advertised address"]
    assert f"{host} has no address" in found["advertised address"]
    assert "set advertised=HOST:PORT" in found["advertised address"]


@pytest.mark.parametrize("setting", ["advertised", "listen"])
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_every_interface_is_no_address_for_clients(setting: str, host: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "-s", f"{setting}={host}:9092"])
    assert result.exit_code == 1
    assert isinstance(result.exception, Exception)
    message, advice = explain(result.exception)
    assert f"{setting}={host}:9092 is every interface" in message
    assert "advertised=broker-1.example.com:9092" in advice
