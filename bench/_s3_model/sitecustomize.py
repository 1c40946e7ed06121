"""Puts the latency model of S3 before every store that a process opens.

Every Python process that has this folder in PYTHONPATH loads it: workers of executors, and the service of each node.
Each notes how long its requests for batches take."""

import functools
import os

folder = os.environ.get("BRAIDLOG_BENCH_TIMES")
if folder is not None:
    from braidlog.objects import latency
    from braidlog.objects import open as opening
    from braidlog.objects.keys import InvalidKey, parse_shuffle_key

    class NotedStore(latency.SlowStore):
        """The model, with a note of each request for a batch."""

        async def _around(self, request, call):  # type: ignore[no-untyped-def]
            try:
                parse_shuffle_key(request.key)
            except InvalidKey:
                return await call()  # what is not a batch is not part of the model
            started_s = self._clock.monotonic_s()
            result = await super()._around(request, call)
            with open(f"{folder}/{os.getpid()}", "a") as notes:
                kind = "put" if request.operation.writes else "get"
                notes.write(f"{kind} {self._clock.monotonic_s() - started_s}\n")
            return result

    plain = opening.open_store

    @functools.wraps(plain)
    def slow(url, *, clock, entropy, **more):  # type: ignore[no-untyped-def]
        profile = latency.latency_profile("s3")
        model = functools.partial(NotedStore, profile=profile, clock=clock, entropy=entropy.fork("s3"))
        return plain(url, clock=clock, entropy=entropy, wrap=[model], **more)

    opening.open_store = slow
