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
    """Whoever changes the state holds it from planning the change until that is durable and visible."""
    feed: Feed
    clock: Clock
