-- Persisted: never edit a released migration, add another one.

-- Grows with every swap of extents: a job that was planned before one cannot make another.
ALTER TABLE partitions ADD COLUMN index_generation BIGINT NOT NULL DEFAULT 0;

-- What compaction has done to a partition. All below clean_end_offset was compacted: no key is there twice.
-- due_ms: when it should be compacted again however little is dirty, because tombstones may go then, or because not all
-- keys fit into the last compaction; NULL: never.
CREATE TABLE partition_compactions (
    partition_id BIGINT PRIMARY KEY,
    clean_end_offset BIGINT NOT NULL,
    compacted_ms BIGINT NOT NULL,
    due_ms BIGINT
);

-- state: waiting, running, done or failed. task: msgpack of control.interface.JobTask; NULL once the job is over.
-- token: of the newest lease; the lease is durable, its deadline is not: a new control plane grants it once more.
-- listing: msgpack of control.interface.JobListing as it was written last.
CREATE TABLE jobs (
    job_id BIGINT PRIMARY KEY,
    state TEXT NOT NULL,
    task BYTEA,
    token BYTEA,
    write_epoch BIGINT NOT NULL,
    listing BYTEA NOT NULL
);
CREATE INDEX jobs_state ON jobs (state);
