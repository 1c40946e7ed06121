"""Writing, reading and finding records.

The APIs are Produce, Fetch, ListOffsets, DeleteRecords and OffsetForLeaderEpoch.
"""
