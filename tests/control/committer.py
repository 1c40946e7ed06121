"""A control plane that commits without end, to be killed: `python -m tests.control.committer FILE SEED`.

Prints a line for each commit that was acknowledged: nonce, then partition:base offset of each extent.
"""

import asyncio
import sys

from tests.control.driver import batch, create_topic, make_object, start_plane

from braidlog.control.interface import SnapshotRequest
from braidlog.control.settings import ControlSettings
from braidlog.runtime.entropy import SeededEntropy

PARTITIONS = 7
COMMITTERS = 4


async def main(path: str, seed: str) -> None:
    plane = await start_plane(f"sqlite://{path}", settings=ControlSettings(recent_extents_max=40))
    snapshot = await plane.service.snapshot(SnapshotRequest())
    topic = snapshot.topics[0] if snapshot.topics else await create_topic(plane.service, "t", PARTITIONS)

    async def commit_without_end(number: int) -> None:
        entropy = SeededEntropy(f"{seed}/{number}")
        incarnation = f"{seed}-{number}"
        while True:
            chosen = sorted({entropy.below(PARTITIONS) for _ in range(3)})
            extents = [(topic.topic_id, index, [batch(1 + entropy.below(5))]) for index in chosen]
            nonce = entropy.token(16)
            verdict = await plane.service.commit_object(make_object(extents, nonce=nonce, incarnation=incarnation))
            offsets = (
                f"{index}:{extent.verdicts[0].base_offset}"
                for index, extent in zip(chosen, verdict.extents, strict=True)
            )
            sys.stdout.write(f"{nonce.hex()} {' '.join(offsets)}\n")
            sys.stdout.flush()

    await asyncio.gather(*(commit_without_end(number) for number in range(COMMITTERS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
