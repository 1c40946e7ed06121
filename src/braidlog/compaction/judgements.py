"""Applies the rules of compaction to all batches of a table."""

from typing import NamedTuple

import numpy as np

from braidlog.compaction.rules import Judge
from braidlog.records.compiled import Bytes, Numbers


class Judgements(NamedTuple):
    """The verdict of the rules on each batch, as arrays for compiled code."""

    treatments: Bytes
    tombstones_may_go: Bytes


def judge_batches(judge: Judge, table: Numbers) -> Judgements:
    treatments = bytearray()
    tombstones_may_go = bytearray()
    for _, _, offset, last_offset_delta, attributes, base_ms, _, producer_id, *_ in table.tolist():
        end_offset = offset + last_offset_delta + 1
        treatments.append(judge.treatment(attributes, producer_id, offset, end_offset))
        tombstones_may_go.append(judge.tombstones_may_go(attributes, base_ms, end_offset))
    return Judgements(np.frombuffer(treatments, dtype=np.uint8), np.frombuffer(tombstones_may_go, dtype=np.uint8))
