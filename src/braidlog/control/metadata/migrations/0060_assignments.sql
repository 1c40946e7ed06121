-- Persisted: never edit a released migration, add another one.

-- Replicas that were assigned by hand: JSON, by partition index.
ALTER TABLE topics ADD COLUMN assignments TEXT NOT NULL DEFAULT '{}';
