-- Persisted: never edit a released migration, add another one.

-- Every transactional id in use. state: Kafka's name (Empty, Ongoing, CompleteCommit, CompleteAbort). There is no state
-- in between, because a decision, its markers and its offsets are one transaction of this store.
-- last_epoch: the epoch before the last bump that its producer asked for, -1: none. A retry of that request carries it.
-- previous_producer_id: the producer id before the current one, whose epochs were used up; -1: none.
-- started_ms: start of the ongoing transaction; -1: there is none. updated_ms: the last change, for expiry.
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

-- Partitions of ongoing transactions. first_offset: offset of the transaction's first batch there; -1: none yet.
CREATE TABLE transaction_partitions (
    producer_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    first_offset BIGINT NOT NULL,
    PRIMARY KEY (producer_id, partition_id)
) /* sqlite: WITHOUT ROWID */;

-- Groups for which ongoing transactions commit offsets, and those offsets. A commit moves them to `group_offsets`.
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

-- The records of aborted transactions: batches of the producer in [first_offset, marker_offset) of the partition.
-- stable_offset: the partition's last stable offset after the marker; no later row has a first_offset below it.
CREATE TABLE aborted_transactions (
    partition_id BIGINT NOT NULL,
    marker_offset BIGINT NOT NULL,
    producer_id BIGINT NOT NULL,
    first_offset BIGINT NOT NULL,
    stable_offset BIGINT NOT NULL,
    PRIMARY KEY (partition_id, marker_offset)
) /* sqlite: WITHOUT ROWID */;

-- The bytes of an extent that is in no object: the marker that ends a transaction. No object has its object_number.
ALTER TABLE extents ADD COLUMN inline_bytes BYTEA;
