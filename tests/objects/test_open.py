import pytest
from tests.fakes import FakeClock

from braidlog.objects.open import open_store, redacted
from braidlog.objects.retries import RetryingStore, RetryPolicy
from braidlog.objects.store import NotFound, Store
from braidlog.runtime.clock import SystemClock
from braidlog.runtime.entropy import SeededEntropy
from braidlog.runtime.errors import InvalidSetting


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "AWS_REGION", "AWS_ALLOW_HTTP"]:
        monkeypatch.delenv(name, raising=False)


def open_it(url: str, retry: RetryPolicy | None = None) -> Store:
    return open_store(url, clock=FakeClock(), entropy=SeededEntropy(1), retry=retry)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("", "memory://"),
        ("/var/lib", "file:///"),
        ("ftp://host/x", "s3://bucket"),
        ("http://host/x", "s3://bucket"),
        ("file://", "file:///"),
        ("file:///", "file:///"),
        ("file://host/x", "file:///"),
        ("s3://", "s3://bucket"),
        ("s3:///prefix", "s3://bucket"),
        ("s3://bucket?regoin=x", "region"),
        ("s3://bucket?region=", "region="),
        ("s3://bucket?allow_http=maybe", "allow_http=true"),
        ("s3://bucket?endpoint=http://127.0.0.1:1", "allow_http=true"),
        ("s3://bucket?endpoint=localhost", "endpoint=http"),
        ("memory://a/b", "memory://"),
        ("memory://?x=1", "none"),
        ("file:///tmp/x?sync=false", "none"),
        ("s3://[", "s3://"),
    ],
)
def test_a_wrong_url_says_what_is_right(url: str, word: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        open_it(url)
    assert word in caught.value.help


@pytest.mark.parametrize(
    "url",
    [
        "s3://KEYSECRET:PASSSECRET@bucket",
        "s3://bucket?secret_access_key=SECRET&unknown=1",
        "s3://bucket?secret_access_key=SECRET&unknown=SECRET",
        "s3://bucket?secret_access_key=SECRET&endpoint=http://u:SECRET@host",
        "s3://bucket?access_key_id=SECRET&allow_http=maybe",
        "az://container?account_key=SECRET",
        "gs://bucket?service_account_key=SECRET",
    ],
)
def test_errors_do_not_show_secrets(url: str) -> None:
    with pytest.raises(InvalidSetting) as caught:
        open_it(url)
    assert "SECRET" not in str(caught.value) + caught.value.help
    assert caught.value.__cause__ is None


def test_a_stores_url_shows_no_secrets() -> None:
    url = "s3://bucket/a/b?region=eu-west-1&access_key_id=SECRET&secret_access_key=SECRET&session_token=SECRET"
    assert open_it(url).url == "s3://bucket/a/b?region=eu-west-1"
    assert open_it(url, RetryPolicy()).url == "s3://bucket/a/b?region=eu-west-1"
    assert redacted("s3://u:p@bucket/x?endpoint=http://u:p@h:1/&secret_access_key=q") == (
        "s3://bucket/x?endpoint=http://h:1/"
    )
    assert open_it("az://container/p?account_name=me&account_key=U0VDUkVU").url == "az://container/p?account_name=me"


async def test_memory_is_shared_by_name_only() -> None:
    one, same, other = open_it("memory://shared-a"), open_it("memory://shared-a"), open_it("memory://shared-b")
    await one.put("k", b"x")
    assert bytes((await same.get("k")).data) == b"x"
    for store in [other, open_it("memory://"), open_it("memory://")]:
        with pytest.raises(NotFound):
            await store.get("k")
    private = open_it("memory://")
    await private.put("k", b"x")
    with pytest.raises(NotFound):
        await open_it("memory://").get("k")


def test_retries_are_the_default() -> None:
    assert isinstance(open_store("memory://", clock=FakeClock(), entropy=SeededEntropy(1)), RetryingStore)


def test_the_environment_names_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(InvalidSetting, match="plain HTTP"):
        open_it("s3://bucket")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert open_it("s3://bucket").url == "s3://bucket?endpoint=http://127.0.0.1:9"


async def test_the_usual_variables_are_enough(seaweed_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    location, _, options = seaweed_url.partition("?")
    values = dict(option.split("=", 1) for option in options.split("&"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", values["endpoint"])
    monkeypatch.setenv("AWS_REGION", values["region"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", values["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", values["secret_access_key"])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    store = open_store(location, clock=SystemClock(), entropy=SeededEntropy(1))
    await store.put("k", b"x")
    given = open_store(f"{seaweed_url}&unsigned_payload=true", clock=SystemClock(), entropy=SeededEntropy(1))
    assert bytes((await given.get("k")).data) == b"x"
    await given.put("unsigned", b"y")
    # What the URL says goes before what the environment says.
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    assert bytes((await open_store(seaweed_url, clock=SystemClock(), entropy=SeededEntropy(1)).get("k")).data) == b"x"
