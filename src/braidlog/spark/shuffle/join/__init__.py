"""`BlobShuffle.join`: joins of two DataFrames, one partition at a time."""
