"""The few things that every part of the control plane works with."""

import asyncio
from dataclasses import dataclass

from braidlog.control.log.feed import Feed
from braidlog.control.metadata.store import MetadataStore
from braidlog.runtime.clock import Clock


@dataclass(frozen=True, slots=True)
class Foundation:
    metadata: MetadataStore
    state_lock: asyncio.Lock
    """Whoever changes the state holds it until the change is planned in the metadata and visible in memory.

    It waits outside of it until the change is durable. See `control.metadata.store`.
    """
    feed: Feed
    clock: Clock
