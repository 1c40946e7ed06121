"""Deliberately wrong variants of Braidlog, to test the simulator: each must be caught, or the simulator proves nothing.

A mistake replaces one piece of real code with what somebody might plausibly have written instead, for one run.
"""

from braidlog.sim.mistakes import control_plane, groups, jobs, lightning, read_path, shards, transactions, write_path
from braidlog.sim.mistakes.mistake import MISTAKES, Mistake

__all__ = [
    "MISTAKES",
    "Mistake",
    "control_plane",
    "groups",
    "jobs",
    "lightning",
    "read_path",
    "shards",
    "transactions",
    "write_path",
]
