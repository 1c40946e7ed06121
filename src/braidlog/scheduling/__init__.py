"""Decides when uploads happen, and how many at once.

Pure: time and counters come in, decisions go out.

In this room, *group* always means a shard group: shards that share one stream of uploads.
"""
