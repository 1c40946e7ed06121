-- Persisted: never edit a released migration, add another one.

-- The process that holds the metadata, where several can reach it. beats: grows while that process is alive.
CREATE TABLE holder (
    id BIGINT PRIMARY KEY,
    holder_name TEXT NOT NULL,
    beats BIGINT NOT NULL
);
INSERT INTO holder VALUES (1, '', 0);
