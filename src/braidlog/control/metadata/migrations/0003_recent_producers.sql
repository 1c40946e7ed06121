-- Persisted: never edit a released migration, add another one.

-- `producer_partitions.batches` now holds up to five batches of 16 bytes, the newest last, big-endian: first sequence
-- number (i32), last sequence number (i32), base offset (i64). Rows in the earlier form stay until the next write: they
-- begin with a byte of 0x80 or more, and no sequence number does.

-- The batches of idempotent producers that the object appended, in order, as msgpack
-- [[producer_id, partition_id, producer_epoch, the 16 bytes above], …]; NULL: none.
-- A row of `producer_partitions` includes all batches up to its last base offset. Later ones are only here.
-- Likewise next_offset and size_bytes of `partitions` include only what was moved to `extents`. The rest is here.
ALTER TABLE recent_objects ADD COLUMN producer_batches BYTEA;
