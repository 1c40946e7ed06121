-- Persisted: never edit a released migration, add another one.

-- The record of each journal sequence. slots: msgpack [[start, end), …] of the slots that are sequenced or fenced.
-- end_slot: how many slots it has, once it is sealed or its writer has ended it; -1: unknown yet.
-- opened_ms: when the control plane first heard of it.
CREATE TABLE journal_sequences (
    incarnation TEXT NOT NULL,
    number BIGINT NOT NULL,
    slots BYTEA NOT NULL,
    end_slot BIGINT NOT NULL,
    opened_ms BIGINT NOT NULL,
    PRIMARY KEY (incarnation, number)
) /* sqlite: WITHOUT ROWID */;

-- The closed journal sequences of each writer: msgpack [[start, end), …] of their numbers. Never deleted: every file
-- of such a sequence was sequenced before, however late somebody commits it.
CREATE TABLE journal_writers (
    incarnation TEXT PRIMARY KEY,
    closed BYTEA NOT NULL
) /* sqlite: WITHOUT ROWID */;

-- Held batches: journaled, waiting for earlier batches of their producer. Each counts in its object's live_count, and
-- will be appended as an extent of its own. held_ms: since when it waits.
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

-- The producer's missing sequence numbers: msgpack of control.log.gaps.Gaps. NULL: none is missing.
ALTER TABLE producer_partitions ADD COLUMN gaps BYTEA;
