-- Persisted: never edit a released migration, add another one.

-- How many transactions were recorded for the copy in the bucket. Each one counts itself.
CREATE TABLE copy_position (
    id BIGINT PRIMARY KEY,
    position BIGINT NOT NULL
);
INSERT INTO copy_position VALUES (1, 0);
