"""Consumer groups whose coordinator assigns partitions: the consumer protocol."""
