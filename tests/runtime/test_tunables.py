"""Programs begin again with glibc's tunables, once, and as the process that they were."""

import json
import subprocess
import sys

import pytest

from braidlog.runtime import tunables
from braidlog.runtime.tunables import STREAMED_COPY_TUNABLE, VARIABLE, tuned

_SHOW = """
import json, os, sys
from braidlog.runtime.tunables import restart_tuned
starts = os.environ["STARTS"] = os.environ.get("STARTS", "") + "|"
restart_tuned()
print(json.dumps({"pid": os.getpid(), "arguments": sys.argv[1:], "starts": len(starts), "environ": dict(os.environ)}))
"""


@pytest.fixture
def with_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this runs on."""
    monkeypatch.setattr(tunables, "_has_streamed_copies", lambda: True)


@pytest.mark.usefixtures("with_glibc")
def test_other_tunables_stay() -> None:
    environ = tuned({VARIABLE: "glibc.malloc.arena_max=2", "HOME": "/root"})
    assert environ["HOME"] == "/root"
    assert environ[VARIABLE].split(":") == [
        "glibc.malloc.arena_max=2",
        f"{STREAMED_COPY_TUNABLE}={tunables.STREAMED_COPY_BYTES_MIN}",
    ]


@pytest.mark.usefixtures("with_glibc")
def test_a_choice_that_was_made_stays() -> None:
    chosen = {VARIABLE: f"{STREAMED_COPY_TUNABLE}=100000000"}
    assert tuned(chosen) == chosen
    assert tuned(tuned({})) == tuned({})


def test_nothing_is_said_to_other_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunables, "_has_streamed_copies", lambda: False)
    assert tuned({"HOME": "/root"}) == {"HOME": "/root"}


@pytest.mark.skipif(not tunables._has_streamed_copies(), reason="another C library or processor")
@pytest.mark.parametrize(("environ", "starts"), [({}, 2), (tuned({}), 1)], ids=["as it is", "tuned"])
def test_a_program_begins_again_once(environ: dict[str, str], starts: int) -> None:
    arguments = ["--listen", "a b", ""]
    with subprocess.Popen(
        [sys.executable, "-c", _SHOW, *arguments], env=environ, stdout=subprocess.PIPE, text=True
    ) as process:
        shown = json.loads(process.communicate(timeout=60)[0])
    assert shown["pid"] == process.pid
    assert shown["arguments"] == arguments
    assert shown["starts"] == starts
    assert shown["environ"][VARIABLE] == tuned({})[VARIABLE]
