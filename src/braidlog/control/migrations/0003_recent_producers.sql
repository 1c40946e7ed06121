-- Persisted: never edit a released migration, add another one.

-- The batches of idempotent producers that the object appended, in their order, as msgpack
-- [[producer_id, partition_id, producer_epoch, [first sequence, last sequence, base offset]], …]; NULL: none.
-- A row of `producer_partitions` knows all batches up to its last base offset; later ones are only here.
-- Likewise a row of `partitions` knows (next_offset, size_bytes) only what was moved to `extents`; the rest is here.
ALTER TABLE recent_objects ADD COLUMN producer_batches BYTEA;
