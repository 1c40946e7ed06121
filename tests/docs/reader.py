"""A reader who tries everything on a page, in order, against a Braidlog that runs."""

import ast
import asyncio
import inspect
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.docs.snippets import Snippet, commands

from braidlog.runtime.settings import load_settings

COMMAND_S_MAX = 240.0
PROGRAMS = ("curl", "kcat")
"""What a page may use though it is not part of Braidlog. Where one is missing, its commands cannot be tried."""


class Reader:
    """Names of Python live from one snippet of the page to the next, as do files in the working directory."""

    def __init__(self, folder: Path, places: Mapping[str, str]) -> None:
        self._folder = folder
        self._places = places
        """What the pages name, such as 127.0.0.1:9092, and what is there instead."""
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._environ = self._environment()

    def _environment(self) -> dict[str, str]:
        """The `braid` command on the path, and the addresses that it takes when it is told none."""
        programs = self._folder / "bin"
        programs.mkdir()
        braid = programs / "braid"
        braid.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m braidlog "$@"\n')
        braid.chmod(0o755)
        own = {name: value for name, value in os.environ.items() if not name.startswith("BRAIDLOG_")}
        return {
            **own,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "BRAIDLOG_BOOTSTRAP": self._places["127.0.0.1:9092"],
            "BRAIDLOG_CONTROL": self._places["127.0.0.1:9190"],
            "BRAIDLOG_STORE_URL": self._places["s3://bucket/prefix"],
        }

    def _here(self, text: str) -> str:
        for named, there in self._places.items():
            text = text.replace(named, there)
        return text

    def attempt(self, snippet: Snippet) -> None:
        match snippet.language:
            case "python":
                self._run_python(snippet)
            case "sql":
                self._names["spark"].sql(self._here(snippet.text)).collect()
            case "toml":
                path = self._folder / "braidlog.toml"
                path.write_text(snippet.text)
                load_settings(config=path)
            case _:
                for command, output in commands(snippet):
                    self._run_command(snippet, command, output)

    def _run_python(self, snippet: Snippet) -> None:
        # Empty lines in front: a traceback then names the line of the page.
        source = "\n" * (snippet.line - 1) + self._here(textwrap.dedent(snippet.text))
        code = compile(source, snippet.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        if code.co_flags & inspect.CO_COROUTINE:
            asyncio.run(eval(code, self._names))
        else:
            exec(code, self._names)

    def _run_command(self, snippet: Snippet, command: str, output: list[str]) -> None:
        if any(f"{program} " in command and shutil.which(program) is None for program in PROGRAMS):
            return
        done = subprocess.run(
            ["bash", "-c", f"set -euo pipefail; {self._here(command)}"],
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=COMMAND_S_MAX,
        )
        where = f"{snippet.page}:{snippet.line}: {command}"
        assert done.returncode == 0, f"{where}\n{done.stdout}{done.stderr}"
        if output and not snippet.output_varies:
            assert done.stdout.splitlines() == output, where
