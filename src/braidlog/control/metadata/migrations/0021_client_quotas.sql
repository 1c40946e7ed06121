-- Persisted: never edit a released migration, add another one.

-- entity: JSON of [[type, name or null for the default], …], ordered by type.
CREATE TABLE client_quotas (
    entity TEXT NOT NULL,
    quota_key TEXT NOT NULL,
    quota_value DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (entity, quota_key)
) /* sqlite: WITHOUT ROWID */;
