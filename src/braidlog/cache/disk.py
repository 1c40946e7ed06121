"""The layer on a local disk: larger than memory, and nearer than the store."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar, TypeVarTuple, Unpack

import structlog

from braidlog.cache.layers import Layer, LayerStatistics, LruIndex, Piece
from braidlog.objects.store import Bytes
from braidlog.runtime.tasks import TaskGroup

log = structlog.get_logger(__name__)

T = TypeVar("T")
A = TypeVarTuple("A")

_THREADS_MAX = 4
_WRITES_MAX = 8
"""Writes at a time. What is read faster than the disk can write is not kept."""
_SUFFIX = ".piece"


class DiskLayer:
    """Keeps pieces of objects as files in its own folder.

    They are not synced, so they are of use only while the process lives: at its start, it removes what it finds.
    """

    def __init__(self, below: Layer, folder: Path, *, bytes_max: int, on_write: bool = False) -> None:
        self._below = below
        self._folder = folder
        self._on_write = on_write
        self._index = LruIndex(bytes_max)
        self._executor = ThreadPoolExecutor(_THREADS_MAX, thread_name_prefix="braidlog-cache")
        self._tasks = TaskGroup("disk cache")
        self._writing: set[Piece] = set()
        self._hits = self._misses = self._hit_bytes = 0
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"*{_SUFFIX}*"):
            old.unlink(missing_ok=True)

    async def read(self, key: str, object_size: int, start: int, end: int) -> Bytes:
        for piece in dict.fromkeys(((key, start, end), (key, 0, object_size))):
            if self._index.use(piece):
                data = await self._on_disk(self._read_file, piece, start - piece[1], end - start)
                if data is not None:
                    self._hits += 1
                    self._hit_bytes += end - start
                    return data
                self._index.remove(piece)
        self._misses += 1
        found = await self._below.read(key, object_size, start, end)
        self._keep((key, start, end), found)
        return found

    async def put(self, key: str, data: Bytes) -> None:
        await self._below.put(key, data)
        if self._on_write:
            self._keep((key, 0, len(data)), data)

    def insert(self, key: str, data: Bytes) -> None:
        """Keep a whole object that another has written."""
        self._keep((key, 0, len(data)), data)

    def _keep(self, piece: Piece, data: Bytes) -> None:
        if len(self._writing) < _WRITES_MAX and piece not in self._writing and self._index.fits(len(data)):
            self._writing.add(piece)
            self._tasks.spawn(self._write(piece, data))

    async def _write(self, piece: Piece, data: Bytes) -> None:
        try:
            if await self._on_disk(self._write_file, piece, data):
                for gone in self._index.add(piece, len(data)):
                    await self._on_disk(self._remove_file, gone)
        finally:
            self._writing.discard(piece)

    async def _on_disk(self, work: Callable[[Unpack[A]], T], *arguments: *A) -> T | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, work, *arguments)
        except OSError as error:
            log.warning("the disk of the cache fails", folder=str(self._folder), error=str(error))
            return None

    def _path(self, piece: Piece) -> str:
        name = blake2b(repr(piece).encode(), digest_size=16).hexdigest()
        return os.path.join(self._folder, f"{name}{_SUFFIX}")

    def _read_file(self, piece: Piece, position: int, length: int) -> bytes | None:
        with open(self._path(piece), "rb") as file:
            data = os.pread(file.fileno(), length, position)
        return data if len(data) == length else None

    def _write_file(self, piece: Piece, data: Bytes) -> bool:
        path = self._path(piece)
        with open(f"{path}.new", "wb") as file:
            file.write(data)
        os.replace(f"{path}.new", path)
        return True

    def _remove_file(self, piece: Piece) -> None:
        os.unlink(self._path(piece))

    def statistics(self) -> LayerStatistics:
        return LayerStatistics(self._hits, self._misses, 0, self._hit_bytes, self._index.size_bytes)

    async def wait_written(self) -> None:
        """Return when everything to be kept is on the disk."""
        await self._tasks.wait_all()

    async def close(self) -> None:
        await self._tasks.wait_all()
        self._executor.shutdown(wait=False)
        await self._below.close()
