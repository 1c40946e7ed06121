-- Persisted: never edit a released migration, add another one.

-- A consumer group between two rebalances. state: msgpack of control.groups.classic.member.SavedGroup.
-- empty_since_ms: when its last member left; NULL while it has members.
CREATE TABLE consumer_groups (
    group_id TEXT PRIMARY KEY,
    generation_id BIGINT NOT NULL,
    empty_since_ms BIGINT,
    state BYTEA NOT NULL
) /* sqlite: WITHOUT ROWID */;

-- Committed offsets, also of groups that never had members, which have no row above. metadata: the client's text, UTF-8.
CREATE TABLE group_offsets (
    group_id TEXT NOT NULL,
    topic_id BYTEA NOT NULL,
    partition_index BIGINT NOT NULL,
    committed_offset BIGINT NOT NULL,
    leader_epoch BIGINT NOT NULL,
    metadata BYTEA NOT NULL,
    committed_ms BIGINT NOT NULL,
    PRIMARY KEY (group_id, topic_id, partition_index)
) /* sqlite: WITHOUT ROWID */;
CREATE INDEX group_offsets_topic ON group_offsets (topic_id);
