-- Persisted: never edit a released migration, add another one.

-- The configs of single groups (type 32) and client metrics (type 16): JSON.
CREATE TABLE resource_configs (
    resource_type BIGINT NOT NULL,
    resource_name TEXT NOT NULL,
    configs TEXT NOT NULL,
    PRIMARY KEY (resource_type, resource_name)
) /* sqlite: WITHOUT ROWID */;
