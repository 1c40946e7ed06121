-- Persisted: never edit a released migration, add another one.

-- Every transactional id that was used lately. state: Kafka's name of it (Empty, Ongoing, CompleteCommit, CompleteAbort):
-- the decision, its markers and its offsets are one transaction of this store, so there is nothing between them.
-- last_epoch: the epoch before the last bump that its own producer asked for, -1: none; a retry of that request has it.
-- previous_producer_id: the id before the current one, given up because its epochs were used up; -1: none.
-- started_ms: of the ongoing transaction; -1: there is none. updated_ms: the last change, for expiry.
CREATE TABLE transactional_ids (
    transactional_id TEXT PRIMARY KEY,
    producer_id BIGINT NOT NULL UNIQUE,
    producer_epoch BIGINT NOT NULL,
    last_epoch BIGINT NOT NULL,
    previous_producer_id BIGINT NOT NULL,
    timeout_ms BIGINT NOT NULL,
    state TEXT NOT NULL,
    started_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL
) /* sqlite: WITHOUT ROWID */;

-- Partitions of ongoing transactions. first_offset: of the transaction's first batch there; -1: nothing was written yet.
CREATE TABLE transaction_partitions (
    producer_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_offset BIGINT NOT NULL,
    PRIMARY KEY (producer_id, partition_id)
) /* sqlite: WITHOUT ROWID */;

-- Groups whose offsets ongoing transactions commit, and those offsets. They are in `group_offsets` once it is committed.
CREATE TABLE transaction_groups (
    producer_id BIGINT NOT NULL,
    group_id TEXT NOT NULL,
    PRIMARY KEY (producer_id, group_id)
) /* sqlite: WITHOUT ROWID */;
CREATE TABLE transaction_offsets (
    producer_id BIGINT NOT NULL,
    group_id TEXT NOT NULL,
    topic_id BYTEA NOT NULL,
    partition_index BIGINT NOT NULL,
    committed_offset BIGINT NOT NULL,
    leader_epoch BIGINT NOT NULL,
    metadata BYTEA NOT NULL,
    committed_ms BIGINT NOT NULL,
    PRIMARY KEY (producer_id, group_id, topic_id, partition_index)
) /* sqlite: WITHOUT ROWID */;

-- What aborted transactions have left in each partition: batches of the producer in [first_offset, marker_offset).
-- stable_offset: the partition's last stable offset after the marker; no later row has a first_offset below it.
CREATE TABLE aborted_transactions (
    partition_id BIGINT NOT NULL,
    marker_offset BIGINT NOT NULL,
    producer_id BIGINT NOT NULL,
    first_offset BIGINT NOT NULL,
    stable_offset BIGINT NOT NULL,
    PRIMARY KEY (partition_id, marker_offset)
) /* sqlite: WITHOUT ROWID */;

-- The bytes of an extent that no object holds: the marker that ends a transaction. Its object_number is in no object's row.
ALTER TABLE extents ADD COLUMN inline_bytes BYTEA;
