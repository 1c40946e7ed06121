"""Stores the keys that a part of a compaction has collected, for its other parts.

Nothing in the index refers to such an object. The worker deletes it when the job is over; if the worker dies, the
sweeper does, as with any upload that was never committed.
"""

import numpy as np
from fastcrc.crc32 import iscsi as crc32c

from braidlog.compaction.key_collector import CollectedKeys
from braidlog.compaction.keymap import KeyMap, Slots
from braidlog.compaction.limits import SLOT_BYTES, CompactionLimits
from braidlog.compaction.rules import Rules
from braidlog.jobs.input import DamagedInput
from braidlog.jobs.parts import Part, StoredKeys
from braidlog.objects.keys import data_key
from braidlog.objects.store import Store
from braidlog.runtime.entropy import Entropy

_CRC_BYTES = 4


async def store_keys(part: Part, keys: CollectedKeys, store: Store, entropy: Entropy) -> StoredKeys:
    content = keys.key_map.entries().tobytes()
    object_key = data_key(part.write_epoch, f"keys-{entropy.token(8).hex()}", 0)
    await store.put(object_key, content + crc32c(content).to_bytes(_CRC_BYTES, "big"))
    is_full = keys.clean_end_offset < part.task.partitions[0].extents[-1].end_offset
    return StoredKeys(object_key, keys.key_map.key_count, keys.clean_end_offset, is_full)


async def read_keys(part: Part, rules: Rules, limits: CompactionLimits, store: Store) -> CollectedKeys:
    """Read the keys that a part needs, and join them into one map."""
    key_map = KeyMap(bytes_max=limits.key_map_bytes_max, seed=part.seed)
    for stored in part.keys:
        length = stored.key_count * SLOT_BYTES
        content = bytes(await store.get_range(stored.object_key, 0, length + _CRC_BYTES))
        if len(content) != length + _CRC_BYTES or crc32c(content[:length]) != int.from_bytes(content[length:], "big"):
            raise DamagedInput(f"the collected keys in {stored.object_key} are damaged")
        entries: Slots = np.frombuffer(content, dtype=np.uint64, count=3 * stored.key_count).reshape(-1, 3)
        key_map.join(entries)
    return CollectedKeys(rules, key_map, part.clean_end_offset)
