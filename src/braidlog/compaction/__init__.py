"""Which records of a compacted partition may go, and the rewriting of what stays. Pure: no I/O, no clock."""
