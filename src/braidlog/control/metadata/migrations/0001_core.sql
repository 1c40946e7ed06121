-- Persisted: never edit a released migration, add another one.

CREATE TABLE fencing (epoch BIGINT NOT NULL);
INSERT INTO fencing VALUES (0);

-- Counters that only grow, and never give out a number twice: object numbers, partition ids, producer ids, write epochs.
CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL
) /* sqlite: WITHOUT ROWID */;

CREATE TABLE facts (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) /* sqlite: WITHOUT ROWID */;

CREATE TABLE cluster_configs (
    name TEXT PRIMARY KEY,
    value TEXT NOT NULL
) /* sqlite: WITHOUT ROWID */;

CREATE TABLE topics (
    topic_id BYTEA PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    configs TEXT NOT NULL,
    replication_factor BIGINT NOT NULL,
    created_ms BIGINT NOT NULL
) /* sqlite: WITHOUT ROWID */;

-- A partition of a deleted topic stays, with removed_ms set, until its extents are dropped.
CREATE TABLE partitions (
    partition_id BIGINT PRIMARY KEY,
    topic_id BYTEA NOT NULL,
    partition_index BIGINT NOT NULL,
    log_start_offset BIGINT NOT NULL,
    next_offset BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    settled_offset BIGINT NOT NULL DEFAULT 0,
    removed_ms BIGINT,
    UNIQUE (topic_id, partition_index)
);
CREATE INDEX partitions_removed ON partitions (removed_ms) WHERE removed_ms IS NOT NULL;

-- Every object that was ever sequenced, until nothing can commit it again. live_count: extents that refer to it.
CREATE TABLE objects (
    number BIGINT PRIMARY KEY,
    nonce BYTEA NOT NULL UNIQUE,
    object_key TEXT NOT NULL UNIQUE,
    size_bytes BIGINT NOT NULL,
    write_epoch BIGINT NOT NULL,
    committed_ms BIGINT NOT NULL,
    live_count BIGINT NOT NULL,
    unreferenced_ms BIGINT,
    deleted_ms BIGINT,
    verdict BYTEA
);
CREATE INDEX objects_unreferenced ON objects (unreferenced_ms) WHERE unreferenced_ms IS NOT NULL;
CREATE INDEX objects_with_verdict ON objects (write_epoch) WHERE verdict IS NOT NULL;

-- The extents of the newest objects, as msgpack [[partition_id, base_offset, …], …] in the order of the columns below.
-- Extents at or above their partition's settled_offset are not in `extents` yet. One row per object is far less to write
-- than one row for each of its partitions. The extents move to `extents` by partition, many at a time.
CREATE TABLE recent_objects (
    number BIGINT PRIMARY KEY,
    extents BYTEA NOT NULL
);

CREATE TABLE extents (
    partition_id BIGINT NOT NULL,
    base_offset BIGINT NOT NULL,
    end_offset BIGINT NOT NULL,
    object_number BIGINT NOT NULL,
    position BIGINT NOT NULL,
    length BIGINT NOT NULL,
    timestamp_ms_min BIGINT NOT NULL,
    timestamp_ms_max BIGINT NOT NULL,
    PRIMARY KEY (partition_id, base_offset)
) /* sqlite: WITHOUT ROWID */;

-- adopted: its id was unknown when it first wrote (it had expired), so its sequence numbers may start anywhere.
CREATE TABLE producers (
    producer_id BIGINT PRIMARY KEY,
    producer_epoch BIGINT NOT NULL,
    adopted BIGINT NOT NULL,
    active_ms BIGINT NOT NULL
);
CREATE INDEX producers_active ON producers (active_ms);

-- batches: the last five, as msgpack [[first sequence number, last sequence number, base offset], …].
CREATE TABLE producer_partitions (
    producer_id BIGINT NOT NULL,
    partition_id BIGINT NOT NULL,
    producer_epoch BIGINT NOT NULL,
    batches BYTEA NOT NULL,
    PRIMARY KEY (producer_id, partition_id)
) /* sqlite: WITHOUT ROWID */;
CREATE INDEX producer_partitions_partition ON producer_partitions (partition_id);

-- The node id of an agent belongs to its address, even after the agent has left.
CREATE TABLE agents (
    node_id BIGINT PRIMARY KEY,
    incarnation TEXT NOT NULL,
    host TEXT NOT NULL,
    port BIGINT NOT NULL,
    zone TEXT NOT NULL,
    left_ms BIGINT,
    UNIQUE (host, port)
);
