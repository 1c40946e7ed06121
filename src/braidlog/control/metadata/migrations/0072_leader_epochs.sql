-- Persisted: never edit a released migration, add another one.

-- Where each leader epoch of a partition starts. Partitions without a row have epoch 0 from offset 0. The counter
-- leader_epoch has the newest epoch of the cluster: each restore begins one, in every partition.
CREATE TABLE leader_epochs (
    partition_id BIGINT NOT NULL,
    leader_epoch BIGINT NOT NULL,
    start_offset BIGINT NOT NULL,
    PRIMARY KEY (partition_id, leader_epoch)
) /* sqlite: WITHOUT ROWID */;
