-- Persisted: never edit a released migration, add another one.

-- Grows with every swap of extents. The result of a job that was planned before a swap is refused.
ALTER TABLE partitions ADD COLUMN index_generation BIGINT NOT NULL DEFAULT 0;

-- How far a partition is compacted. Everything below clean_end_offset is: no key is there twice.
-- due_ms: when to compact it again however little is dirty, because tombstones may go then, or because not all
-- keys fitted into the last compaction; NULL: never.
CREATE TABLE partition_compactions (
    partition_id BIGINT PRIMARY KEY,
    clean_end_offset BIGINT NOT NULL,
    compacted_ms BIGINT NOT NULL,
    due_ms BIGINT
);

-- state: waiting, running, done or failed. task: msgpack of control.interface.JobTask; NULL once the job is over.
-- token: of the newest lease. The lease is durable, its deadline is not: a new control plane grants its full time again.
-- listing: msgpack of control.interface.JobListing.
CREATE TABLE jobs (
    job_id BIGINT PRIMARY KEY,
    state TEXT NOT NULL,
    task BYTEA,
    token BYTEA,
    write_epoch BIGINT NOT NULL,
    listing BYTEA NOT NULL
);
CREATE INDEX jobs_state ON jobs (state);
