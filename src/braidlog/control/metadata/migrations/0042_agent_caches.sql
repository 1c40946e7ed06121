-- Persisted: never edit a released migration, add another one.

-- Where other agents of its zone read an agent's cache; empty: they do not.
ALTER TABLE agents ADD COLUMN cache_address TEXT NOT NULL DEFAULT '';
