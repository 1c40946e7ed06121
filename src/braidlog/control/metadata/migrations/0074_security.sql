-- Persisted: never edit a released migration, add another one.

-- The numbers are Kafka's: `security.acls` names them.
CREATE TABLE acls (
    resource_type BIGINT NOT NULL,
    resource_name TEXT NOT NULL,
    pattern_type BIGINT NOT NULL,
    principal TEXT NOT NULL,
    host TEXT NOT NULL,
    operation BIGINT NOT NULL,
    permission BIGINT NOT NULL,
    PRIMARY KEY (resource_type, resource_name, pattern_type, principal, host, operation, permission)
) /* sqlite: WITHOUT ROWID */;

-- What proves a password without being one: see RFC 5802. mechanism: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512.
CREATE TABLE scram_credentials (
    user_name TEXT NOT NULL,
    mechanism BIGINT NOT NULL,
    salt BYTEA NOT NULL,
    iterations BIGINT NOT NULL,
    stored_key BYTEA NOT NULL,
    server_key BYTEA NOT NULL,
    PRIMARY KEY (user_name, mechanism)
) /* sqlite: WITHOUT ROWID */;
