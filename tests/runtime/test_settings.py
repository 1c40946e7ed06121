"""Settings: who wins, what a wrong value is told, and that a typo is never swallowed."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braidlog.runtime.errors import InvalidSetting, Remedy
from braidlog.runtime.quantities import (
    Address,
    format_bytes,
    parse_bytes,
    parse_milliseconds,
    parse_rate,
    parse_seconds,
    write_bytes,
    write_milliseconds,
    write_seconds,
)
from braidlog.runtime.settings import AgentSettings, ControlPlaneSettings, fields, load_settings, written


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_defaults_are_valid_and_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_settings()
    assert loaded.agent.store_url == loaded.control.store_url == f"file://{tmp_path}/data/store"
    assert loaded.control.metadata_url == f"sqlite://{tmp_path}/data/metadata.db"
    assert loaded.agent.listen == Address("127.0.0.1", 9092)
    assert loaded.agent.upload_size_bytes == 4 * 1024 * 1024
    assert loaded.origins == {}


def test_relative_urls_survive_an_awkward_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b%20?").mkdir()
    monkeypatch.chdir(tmp_path / "a b%20?")
    loaded = load_settings({"store_url": "file://./x%20y", "metadata_url": "sqlite:///./m.db"})
    assert loaded.agent.store_url == f"file://{tmp_path}/a%20b%2520%3F/x%20y"
    assert loaded.control.metadata_url == f"sqlite://{tmp_path}/a b%20?/m.db"
    assert load_settings({"store_url": "file:////var/x/../y"}).agent.store_url == "file:///var/y"
    assert load_settings({"metadata_url": "sqlite://"}).control.metadata_url == "sqlite://"
    assert load_settings({"metadata_url": "bucket://"}).control.metadata_url == "bucket://"
    image = load_settings({"metadata_url": "bucket://./m.db"}).control.metadata_url
    assert image == f"bucket://{tmp_path}/a b%20?/m.db"
    database = "postgresql://braidlog@a,b/metadata"
    assert load_settings({"metadata_url": database}).control.metadata_url == database


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    config = write(
        tmp_path / "braidlog.toml", 'zone = "file"\nupload_interval_ms = 100\nnum_partitions = 3\nlog_level = "error"\n'
    )
    environ = {"BRAIDLOG_ZONE": "environment", "BRAIDLOG_UPLOAD_INTERVAL_MS": "200ms", "BRAIDLOG_BOOTSTRAP": "x:1"}
    loaded = load_settings({"zone": "flag", "log_level": None}, config=config, environ=environ)
    assert loaded.agent.zone == "flag"
    assert loaded.agent.upload_interval_ms == 200
    assert loaded.control.num_partitions == 3
    assert loaded.agent.log_level == loaded.control.log_level == "error"
    assert loaded.origins == {
        "zone": "command line",
        "upload_interval_ms": "BRAIDLOG_UPLOAD_INTERVAL_MS",
        "num_partitions": str(config),
        "log_level": str(config),
    }


@pytest.mark.parametrize(
    "text",
    [
        'upload_size_bytes = "8MiB"',
        'upload.size.bytes = "8MiB"',
        '[upload]\nsize_bytes = "8MiB"',
        '"upload-size-bytes" = 8388608',
    ],
)
def test_one_setting_many_spellings(tmp_path: Path, text: str) -> None:
    assert load_settings(config=write(tmp_path / "c.toml", text)).agent.upload_size_bytes == 8 * 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("upload_size_bytes", "4 mebibytes", "unknown unit"),
        ("upload_size_bytes", "lots", "is not a size"),
        ("upload_size_bytes", "-1", "is not a size"),
        ("upload_size_bytes", -1, "negative"),
        ("upload_size_bytes", True, "is not a size"),
        ("upload_size_bytes", "12B", "greater than or equal to 4096"),
        ("upload_size_bytes", "1TiB", "less than or equal to"),
        ("upload_size_bytes", "4096.5", "whole number of bytes"),
        ("upload_interval_ms", "a while", "is not a duration"),
        ("upload_interval_ms", "0.5ms", "whole number of milliseconds"),
        ("upload_interval_ms", "3 fortnights", "unknown unit"),
        ("upload_interval_ms", 0, "greater than or equal to 1"),
        ("upload_budget_usd_month", "-3", "greater than or equal to 0"),
        ("upload_budget_usd_month", "nan", "finite"),
        ("listen", "localhost", "has no port"),
        ("listen", "localhost:http", "not a number from 0 to 65535"),
        ("listen", "localhost:70000", "not a number from 0 to 65535"),
        ("listen", "::1:9092", "brackets"),
        ("listen", ":9092", "no usable host"),
        ("listen", 9092, "is not an address"),
        ("advertised", "PLAINTEXT://host:9092", "no port|brackets|no usable host"),
        ("advertised", "0.0.0.0:9092", "every interface"),
        ("listen", "0.0.0.0:9092", "every interface"),
        ("store_url", "/var/lib/braidlog", "is not a URL"),
        ("store_url", "ftp://host/path", "unknown scheme 'ftp'"),
        ("store_url", "s3://", "names no bucket"),
        ("store_url", "file://host/path", "has a host"),
        ("store_url", "file:///", "names no path"),
        ("metadata_url", "mysql://host/db", "unknown scheme 'mysql'"),
        ("zone", "us east", "letters, digits"),
        ("log_level", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("auto_create_topics_enable", "perhaps", "valid boolean"),
        ("num_partitions", "0", "greater than or equal to 1"),
        ("num_partitions", "many", "valid integer"),
        ("group_min_session_timeout_ms", "29m", None),
        ("group_max_session_timeout_ms", "1ms", "is above"),
        ("sweep_grace_s", "soon", "is not a duration"),
        ("memory_budget_bytes", "16MiB", None),
    ],
)
def test_wrong_values_are_named_explained_and_get_an_example(name: str, value: object, says: str | None) -> None:
    if says is None:  # at the edge, and fine
        load_settings({name: value})
        return
    with pytest.raises(InvalidSetting, match=says) as caught:
        load_settings({name: value})
    assert name in str(caught.value)
    assert caught.value.help
    assert "\n" not in str(caught.value)
    assert caught.value.remedy is Remedy.FIX_INPUT


def test_settings_that_do_not_fit_together() -> None:
    with pytest.raises(InvalidSetting, match="less than two uploads") as caught:
        load_settings({"upload_size_bytes": "32MiB", "memory_budget_bytes": "48MiB"})
    assert "memory_budget_bytes=" in caught.value.help


def test_unknown_key_in_the_file_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="upload_sise_bytes") as caught:
        load_settings(config=write(tmp_path / "c.toml", 'upload_sise_bytes = "4MiB"'))
    assert "upload_size_bytes?" in caught.value.help


def test_unknown_flag_gets_a_suggestion() -> None:
    with pytest.raises(InvalidSetting) as caught:
        load_settings({"num.partition": 3})
    assert "num_partitions?" in caught.value.help


def test_unknown_environment_variables_do_not_fail() -> None:
    load_settings(environ={"BRAIDLOG_SOMETHING_ELSE": "1", "PATH": "/bin"})


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="does not exist"):
        load_settings(config=tmp_path / "absent.toml")
    with pytest.raises(InvalidSetting, match="not valid TOML"):
        load_settings(config=write(tmp_path / "c.toml", "zone: us"))
    with pytest.raises(InvalidSetting, match="cannot be read"):
        load_settings(config=tmp_path)


def test_metrics_can_be_off() -> None:
    assert load_settings({"metrics_listen": "off"}).agent.metrics_listen is None


def test_advertised_host_falls_back_to_listen() -> None:
    assert load_settings().agent.advertised_host == "127.0.0.1"
    assert load_settings({"listen": "0.0.0.0:9092", "advertised": "b1:9092"}).agent.advertised_host == "b1"


def test_every_setting_is_documented_and_its_example_is_accepted() -> None:
    for name, field in fields().items():
        assert field.description, name
        assert field.examples, name
        model = AgentSettings if name in AgentSettings.model_fields else ControlPlaneSettings
        model(**{name: field.examples[0]})


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings().agent.zone = "other"  # type: ignore[misc]


@given(st.integers(0, 2**50))
@settings(max_examples=50)
def test_plain_numbers_are_bytes_milliseconds_and_seconds(number: int) -> None:
    assert parse_bytes(number) == parse_bytes(str(number)) == number
    assert parse_bytes(f"{number}KiB") == number * 1024
    assert parse_milliseconds(number) == number
    assert parse_milliseconds(f"{number}s") == number * 1000
    assert parse_seconds(f"{number}ms") == number / 1000


@given(st.text(max_size=20) | st.none() | st.floats() | st.booleans() | st.binary(max_size=4))
@settings(max_examples=100)
def test_garbage_is_refused_and_never_crashes(value: object) -> None:
    for parse in (parse_bytes, parse_milliseconds, parse_seconds, Address.parse):
        try:
            parse(value)
        except ValueError:
            pass


def test_addresses() -> None:
    assert Address.parse("[::1]:9092") == Address("::1", 9092)
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address.parse("host:1")) == "host:1"


def test_format_bytes() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1024, 4.1 * 1024**2, 3 * 1024**4)] == [
        "0B",
        "1023B",
        "1KiB",
        "4.1MiB",
        "3TiB",
    ]


@given(st.integers(0, 2**50))
def test_what_is_written_is_read_again(quantity: int) -> None:
    assert parse_bytes(write_bytes(quantity)) == quantity
    assert parse_milliseconds(write_milliseconds(quantity)) == quantity
    assert parse_seconds(write_seconds(quantity / 1000)) == quantity / 1000


def test_quantities_are_written_as_people_do() -> None:
    assert [write_bytes(size) for size in (0, 1000, 256 * 1024**2)] == ["0B", "1000B", "256MiB"]
    assert [write_milliseconds(ms) for ms in (0, 250, 30_000, 604_800_000)] == ["0ms", "250ms", "30s", "7d"]
    assert [write_seconds(seconds) for seconds in (0.5, 600.0)] == ["500ms", "10m"]


def test_every_size_and_duration_is_shown_in_its_unit() -> None:
    settings = load_settings()
    assert written("cache_bytes", settings.agent.cache_bytes) == "256MiB"
    assert written("upload_interval_ms", settings.agent.upload_interval_ms) == "250ms"
    assert written("full_sweep_interval_s", settings.control.full_sweep_interval_s) == "1d"
    assert written("replay_files_per_s", settings.control.replay_files_per_s) == "200.0"
    assert written("metrics_listen", None) == "off"
    for part in (settings.agent, settings.control):
        shown = {name: written(name, value) for name, value in part if value is not None}
        assert load_settings(shown)


@pytest.mark.parametrize("rate", ["fast", "", "1 banana/s", "-1MiB/s"])
def test_what_is_no_rate(rate: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rate|unknown unit"):
        parse_rate(rate)
    assert parse_rate("1.5KiB/s") == 1536


def test_a_password_has_no_place_in_a_url() -> None:
    """It would show in lists of processes, in `braid settings` and in logs."""
    with pytest.raises(InvalidSetting, match="PGPASSWORD"):
        load_settings({"metadata_url": "postgresql://braidlog:secret@host/metadata"})


def test_the_control_plane_may_be_at_several_addresses() -> None:
    loaded = load_settings({"control": "a:1,[::1]:2"})
    assert loaded.agent.control.each == (Address("a", 1), Address("::1", 2))
    assert str(loaded.agent.control) == "a:1,[::1]:2"
    with pytest.raises(InvalidSetting):
        load_settings({"control": "a:1,,b:2"})
