-- Persisted: never edit a released migration, add another one.

-- What of each journal is sequenced. slots: msgpack [[start, end), …] of the slots that are sequenced or fenced.
-- end_slot: how many slots it has, once it is sealed or its writer has said so; -1: nobody knows yet.
-- opened_ms: when it was first heard of.
CREATE TABLE journal_sequences (
    incarnation TEXT NOT NULL,
    number BIGINT NOT NULL,
    slots BYTEA NOT NULL,
    end_slot BIGINT NOT NULL,
    opened_ms BIGINT NOT NULL,
    PRIMARY KEY (incarnation, number)
) /* sqlite: WITHOUT ROWID */;

-- Sequences that are no more, of each writer: msgpack [[start, end), …] of their numbers. Never deleted: whatever is
-- brought of such a sequence was sequenced before, however late it comes.
CREATE TABLE journal_writers (
    incarnation TEXT PRIMARY KEY,
    closed BYTEA NOT NULL
) /* sqlite: WITHOUT ROWID */;

-- Journaled batches that wait for what their producer wrote before them. Each counts in its object's live_count, and is
-- to be appended as an extent of its own. held_ms: since when it waits.
CREATE TABLE held_batches (
    object_number BIGINT NOT NULL,
    position BIGINT NOT NULL,
    length BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    producer_id BIGINT NOT NULL,
    producer_epoch BIGINT NOT NULL,
    base_sequence BIGINT NOT NULL,
    offset_count BIGINT NOT NULL,
    timestamp_ms_min BIGINT NOT NULL,
    timestamp_ms_max BIGINT NOT NULL,
    held_ms BIGINT NOT NULL,
    PRIMARY KEY (object_number, position)
) /* sqlite: WITHOUT ROWID */;

-- Where the producer's numbers did not come in order: msgpack of control.gaps.Gaps. NULL: all before the next one came.
ALTER TABLE producer_partitions ADD COLUMN gaps BYTEA;
