"""One process at a time holds a metadata file, and a second one that cannot start does not end the first."""

import asyncio
import os
from pathlib import Path

import pytest
from tests.fakes import FakeClock

from braidlog.node.assembly import run_control
from braidlog.node.metadata_lock import hold_metadata
from braidlog.runtime.errors import InvalidSetting
from braidlog.runtime.settings import ControlPlaneSettings, load_settings


async def test_a_second_one_hears_who_has_it_and_how_to_end_that(tmp_path: Path, clock: FakeClock) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    async with hold_metadata(url, "control plane at 127.0.0.1:9190", clock, take_over=False):
        with pytest.raises(InvalidSetting) as refused:
            async with hold_metadata(url, "another", clock, take_over=False):
                raise AssertionError("two hold it")
    assert f"process {os.getpid()}, control plane at 127.0.0.1:9190" in str(refused.value)
    assert "--take-over" in refused.value.help


async def test_another_name_of_the_file_is_the_same_file(tmp_path: Path, clock: FakeClock) -> None:
    (tmp_path / "alias").symlink_to(tmp_path, target_is_directory=True)
    async with hold_metadata(f"sqlite://{tmp_path}/metadata.db", "one", clock, take_over=False):
        with pytest.raises(InvalidSetting, match="in use"):
            async with hold_metadata(f"sqlite://{tmp_path}/alias/metadata.db", "another", clock, take_over=False):
                raise AssertionError("two hold it")


async def test_it_is_free_when_its_holder_is_gone(tmp_path: Path, clock: FakeClock) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    for name in ("one", "two"):
        async with hold_metadata(url, name, clock, take_over=False):
            assert name in (tmp_path / "metadata.db.lock").read_text()


async def test_who_takes_over_holds_it_once_the_other_has_ended(tmp_path: Path, clock: FakeClock) -> None:
    url = f"sqlite://{tmp_path}/metadata.db"
    first = hold_metadata(url, "first", clock, take_over=False)
    await first.__aenter__()
    async with hold_metadata(url, "second", clock, take_over=True):
        await first.__aexit__(None, None, None)
        while "second" not in (tmp_path / "metadata.db.lock").read_text():
            await asyncio.sleep(0)
        with pytest.raises(InvalidSetting, match="second"):
            async with hold_metadata(url, "third", clock, take_over=False):
                pass


async def test_a_database_in_memory_is_nobody_elses(clock: FakeClock) -> None:
    async with (
        hold_metadata("sqlite://", "one", clock, take_over=False),
        hold_metadata("sqlite://", "two", clock, take_over=False),
    ):
        pass


async def test_a_second_control_plane_that_cannot_start_does_not_end_the_first(tmp_path: Path) -> None:
    def loaded(store: str) -> ControlPlaneSettings:
        given = {
            "metadata_url": f"sqlite://{tmp_path}/metadata.db",
            "store_url": f"file://{tmp_path}/{store}",
            "control_listen": "127.0.0.1:0",
            "control_metrics_listen": "off",
        }
        return load_settings(given, config=None, environ={}).control

    async with run_control(loaded("store")) as first:
        service = first.control_service
        assert service is not None
        for store in ("store", "other"):
            with pytest.raises(InvalidSetting, match="is in use by process"):
                async with run_control(loaded(store)):
                    raise AssertionError("both run")
        await service._metadata.read(lambda tx: None)  # it is not fenced off
