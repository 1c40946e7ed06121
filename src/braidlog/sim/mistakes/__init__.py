"""Deliberate mistakes in Braidlog, which the simulator must find.

Each replaces one piece of real code, for one run, with plausible but wrong code.
"""

from braidlog.sim.mistakes import (
    control_plane,
    failover,
    groups,
    jobs,
    lightning,
    read_path,
    shards,
    transactions,
    write_path,
)
from braidlog.sim.mistakes.mistake import MISTAKES, Mistake

__all__ = [
    "MISTAKES",
    "Mistake",
    "control_plane",
    "failover",
    "groups",
    "jobs",
    "lightning",
    "read_path",
    "shards",
    "transactions",
    "write_path",
]
