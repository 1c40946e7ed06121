"""Mistakes in the control plane."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from braidlog.control.log import plan as sequencing_plan
from braidlog.control.log import recent, sequencer
from braidlog.control.log.feed import Feed
from braidlog.control.log.judgement import APPENDED, Judgement
from braidlog.control.log.producer_partition import REMEMBERED, ProducerPartition
from braidlog.control.log.sweeper import Sweeper
from braidlog.control.log.write_epochs import WriteEpochs
from braidlog.sim.mistakes.mistake import mistake, replaced


@mistake("Forgets what each producer has written.")
def _forget_the_dedup() -> AbstractContextManager[None]:
    def judge(self: ProducerPartition, epoch: int, first: int, count: int, offset: int, _: bool) -> Judgement:
        self.planned_epoch = epoch
        self.planned_batches = REMEMBERED.pack(first, first + count - 1, offset)
        return APPENDED

    return replaced((ProducerPartition, "judge", judge))


@mistake("Keeps what producers have written in memory only.")
def _producers_not_durable() -> AbstractContextManager[None]:
    return replaced(
        (sequencing_plan, "write_producers", lambda tx, rows: None),
        (sequencing_plan, "encode_batches", lambda batches: None),
        (recent, "write_producer_partitions", lambda tx, states: None),
    )


@mistake("Publishes changes before they are durable.", "crashes")
def _publish_before_durable() -> AbstractContextManager[None]:
    original = sequencer.Sequencer._try_group

    class Early:
        """A metadata store that publishes the plan before it is written."""

        def __init__(self, inner: Any, feed: Feed) -> None:
            self._inner = inner
            self._feed = feed

        async def plan(self, write: Any) -> Any:
            plan = write.__self__
            self._feed.publish(plan.events)
            plan.events = []
            await asyncio.sleep(0.05)  # a slow disk
            return await self._inner.plan(write)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    async def try_group(self: sequencer.Sequencer, group: Any) -> Any:
        if not isinstance(self._metadata, Early):
            self._metadata = Early(self._metadata, self._feed)
        return await original(self, group)

    return replaced((sequencer.Sequencer, "_try_group", try_group))


@mistake("Sweeps unreferenced objects without refusing their late commits first.", "sleepers")
def _sweep_without_the_epoch_floor() -> AbstractContextManager[None]:
    async def raise_floor(self: WriteEpochs, floor: int, holders: object) -> int:
        return max(floor, 0)

    return replaced((WriteEpochs, "raise_floor", raise_floor))


@mistake("Also sweeps objects of the current epoch, whose commits are still in flight.")
def _sweep_without_grace() -> AbstractContextManager[None]:
    async def run_once(self: Sweeper) -> None:
        await self._sweep_orphans(self._epochs.current + 1)

    return replaced((Sweeper, "run_once", run_once))
