"""Topics and partitions: metadata, creation, deletion, replicas, directories."""
