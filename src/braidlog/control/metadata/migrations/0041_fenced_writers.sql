-- Persisted: never edit a released migration, add another one.

-- Writers that have died: no object with their incarnation is sequenced any more. A row can go when the floor of
-- the write epochs has passed it, because the floor then refuses the same objects.
CREATE TABLE fenced_writers (
    incarnation TEXT PRIMARY KEY,
    write_epoch BIGINT NOT NULL
);
