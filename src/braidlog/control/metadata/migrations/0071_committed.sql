-- Persisted: never edit a released migration, add another one.

-- How many transactions the holder has committed since it took over. A holder that lost its connection reads here which
-- of them the server has kept.
ALTER TABLE fencing ADD COLUMN committed BIGINT NOT NULL DEFAULT 0;
