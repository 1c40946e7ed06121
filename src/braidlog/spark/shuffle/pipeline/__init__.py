"""`BlobShuffle.pipeline`: from topic to topic without rows in the JVM."""
