-- Persisted: never edit a released migration, add another one.

-- Writers that have died: nothing that carries their incarnation is sequenced any more. A row can go when the floor of
-- the write epochs has passed it, because the floor refuses the same objects then.
CREATE TABLE fenced_writers (
    incarnation TEXT PRIMARY KEY,
    write_epoch BIGINT NOT NULL
);
