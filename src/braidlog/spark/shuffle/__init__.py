"""A shuffle through the object store: records travel in large objects, and only notifications between tasks.

Nothing here but `blob_shuffle` and what it names needs Spark: batcher and debatcher carry any Arrow rows.
"""
