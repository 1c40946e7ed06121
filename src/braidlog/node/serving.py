"""`braidlog.serve`: a whole Braidlog inside another program.

`braid up` is one such program.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from braidlog.node.assembly import Endpoints, run_embedded
from braidlog.runtime.settings import Settings, load_settings


@asynccontextmanager
async def serve(settings: Settings | None = None, /, **given: Any) -> AsyncIterator[Endpoints]:
    """Run control plane and agent in this event loop until the block ends.

    Settings are keywords, with the names that docs/configuration.md lists and values as they are written there:

        async with braidlog.serve(store_url="file:///srv/log", listen="127.0.0.1:0") as log:
            producer = AIOKafkaProducer(bootstrap_servers=str(log.kafka))

    Neither the environment nor a file is read; to use them, pass the result of `load_settings`. A setting that
    cannot be used raises `InvalidSetting` before anything starts.
    """
    async with run_embedded(load_settings(given) if settings is None else settings) as endpoints:
        yield endpoints
