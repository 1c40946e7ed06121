"""Checks that an agent writes to the store of its control plane."""

import structlog

from braidlog.objects.owner import WrongStore, read_owner
from braidlog.objects.store import NotFound, Store, StoreError
from braidlog.runtime.clock import Clock

log = structlog.get_logger(__name__)

OWNER_WAIT_S = 10.0
_HELP = "Give agents and control plane the same --store."


async def check_store_owner(store: Store, cluster_id: str, clock: Clock) -> None:
    """Raise `WrongStore` if the store is another cluster's, or long has no owner.

    Records in another store would be acknowledged, and nobody would ever find them.
    """
    deadline_s = clock.monotonic_s() + OWNER_WAIT_S
    while True:
        try:
            owner = await read_owner(store)
            break
        except NotFound:
            # The control plane may be about to write it: perhaps it could not when it started.
            if clock.monotonic_s() >= deadline_s:
                message = f"{store.url} is not the control plane's store: no cluster has used it"
                raise WrongStore(message, help=_HELP) from None
            await clock.sleep(OWNER_WAIT_S / 5)
        except StoreError as error:
            log.warning(
                "cannot tell yet which cluster owns the store", store=store.url, error=str(error), help=error.help
            )
            return
    if owner != cluster_id:
        raise WrongStore(f"{store.url} belongs to cluster {owner}, and the control plane to {cluster_id}", help=_HELP)
