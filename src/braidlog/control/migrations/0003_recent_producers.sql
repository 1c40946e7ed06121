-- Persisted: never edit a released migration, add another one.

-- `producer_partitions.batches` is now up to five times, the newest last, 16 bytes in big-endian order: first sequence
-- (i32), last sequence (i32), base offset (i64). Rows in the earlier form stay until they are next written: theirs begin
-- with a byte of 0x80 or more, and no sequence does.

-- The batches of idempotent producers that the object appended, in their order, as msgpack
-- [[producer_id, partition_id, producer_epoch, the 16 bytes above], …]; NULL: none.
-- A row of `producer_partitions` knows all batches up to its last base offset; later ones are only here.
-- Likewise a row of `partitions` knows (next_offset, size_bytes) only what was moved to `extents`; the rest is here.
ALTER TABLE recent_objects ADD COLUMN producer_batches BYTEA;
