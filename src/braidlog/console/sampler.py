"""Reads the metrics of all processes while somebody looks."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import structlog

from braidlog.clients.agent_facts import AgentFacts
from braidlog.console.figures import Change, Figures, Sample, parse_figures
from braidlog.runtime.clock import Clock
from braidlog.runtime.http import fetch_text
from braidlog.runtime.quantities import Address

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
FETCH_TIMEOUT_S = 3.0
SAMPLES_MAX = 300
ATTENTION_S = 30.0
"""How long the sampler goes on after the last look."""
PACE_SAMPLES = 15
"""The rates of a page are those of this many samples."""


class Places(Protocol):
    """Says which agents there are."""

    async def facts(self) -> list[AgentFacts]: ...


class Sampler:
    """Samples while somebody looks: a console that nobody opens costs nothing."""

    def __init__(self, places: Places, clock: Clock, extra: Sequence[str] = ()) -> None:
        """`extra`: the metrics of processes that are no agents."""
        self._places = places
        self._clock = clock
        self._extra = list(extra)
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._looked_s = float("-inf")
        self._watchers = 0
        self._wanted = asyncio.Event()
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.facts: list[AgentFacts] = []

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="console sampler")

    async def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        async with self._changed:
            self._changed.notify_all()

    def look(self) -> None:
        """Go on sampling for a while."""
        self._looked_s = self._clock.monotonic_s()
        self._wanted.set()

    @property
    def samples(self) -> Sequence[Sample]:
        return self._samples

    @property
    def last(self) -> Sample | None:
        return self._samples[-1] if self._samples else None

    def pace(self, sample_count: int = PACE_SAMPLES) -> Change | None:
        """Compare the newest sample with one some seconds older."""
        if len(self._samples) < 2:
            return None
        return Change(self._samples[max(0, len(self._samples) - 1 - sample_count)], self._samples[-1])

    async def watch(self) -> AsyncIterator[Sample]:
        """Give every new sample until the sampler is closed."""
        self._watchers += 1
        try:
            seen: Sample | None = None
            while not self._is_closed:
                self.look()
                async with self._changed:
                    if self._is_closed or (self.last is not None and self.last is not seen):
                        pass
                    else:
                        await self._changed.wait()
                if not self._is_closed and self.last is not None and self.last is not seen:
                    seen = self.last
                    yield seen
        finally:
            self._watchers -= 1

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            started_s = self._clock.monotonic_s()
            if self._watchers == 0 and started_s - self._looked_s > ATTENTION_S:
                self._wanted.clear()
                # What is asked for next should not be compared with what was long ago.
                self._samples.clear()
                continue
            try:
                await self.take()
            except Exception as error:  # noqa: BLE001 - the cluster may be away; the console goes on
                log.debug("no sample", error=repr(error))
                await self._publish(Sample(self._clock.wall_ms(), {}, tuple(self._extra)))
            await self._clock.sleep(max(0.05, INTERVAL_S - (self._clock.monotonic_s() - started_s)))

    async def take(self) -> None:
        """Take one sample now."""
        self.facts = await self._places.facts()
        addresses = list(dict.fromkeys([*self._extra, *(each.metrics for each in self.facts if each.metrics)]))
        agents = {each.metrics for each in self.facts}
        found = await asyncio.gather(*(self._figures(address, address in agents) for address in addresses))
        answered = {place: figures for place, figures in zip(addresses, found, strict=True) if figures is not None}
        silent = tuple(place for place in addresses if place not in answered)
        await self._publish(Sample(self._clock.wall_ms(), answered, silent))

    async def _publish(self, sample: Sample) -> None:
        self._samples.append(sample)
        async with self._changed:
            self._changed.notify_all()

    async def _figures(self, address: str, is_agent: bool) -> Figures | None:
        try:
            text = await fetch_text(Address.parse(address), "/metrics", timeout_s=FETCH_TIMEOUT_S)
        except (OSError, ValueError):
            return None
        figures = parse_figures(text)
        return figures if is_agent else _own_figures(figures)


def _own_figures(figures: Figures) -> Figures:
    """Leave out the shards that a supervisor shows with its own figures.

    They are agents, and are asked themselves.
    """
    return {
        name: {labels: value for labels, value in series.items() if "shard" not in dict(labels)}
        for name, series in figures.items()
    }
