"""`BlobShuffle.group_by`: aggregation of groups, with state for streams."""
