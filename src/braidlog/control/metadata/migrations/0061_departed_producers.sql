-- The states of idempotent producers in partitions of deleted topics, by topic name. A producer that continues with a
-- new topic of the same name does not begin at 0. A row lives as long as its producer is remembered.
CREATE TABLE departed_producers (
    producer_id BIGINT NOT NULL,
    topic_name TEXT NOT NULL,
    partition_index BIGINT NOT NULL,
    producer_epoch BIGINT NOT NULL,
    next_sequence BIGINT NOT NULL,
    PRIMARY KEY (producer_id, topic_name, partition_index)
) /* sqlite: WITHOUT ROWID */;
