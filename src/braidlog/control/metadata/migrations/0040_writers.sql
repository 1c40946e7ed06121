-- Persisted: never edit a released migration, add another one.

-- Writers that upload objects by themselves. While a lease lasts, the floor of write epochs stays at or below its epoch.
CREATE TABLE write_leases (
    lease_id TEXT PRIMARY KEY,
    write_epoch BIGINT NOT NULL,
    granted_ms BIGINT NOT NULL,
    expires_ms BIGINT NOT NULL
) /* sqlite: WITHOUT ROWID */;

-- The newest batches that each writer has committed. verdicts: msgpack of a list of control.interface.ObjectVerdict.
CREATE TABLE writer_batches (
    writer_id TEXT NOT NULL,
    batch_id BIGINT NOT NULL,
    committed_ms BIGINT NOT NULL,
    verdicts BYTEA NOT NULL,
    PRIMARY KEY (writer_id, batch_id)
) /* sqlite: WITHOUT ROWID */;
CREATE INDEX writer_batches_committed ON writer_batches (committed_ms);
