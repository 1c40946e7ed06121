-- Persisted: never edit a released migration, add another one.

-- listeners: JSON of {name: [host, port]}.
ALTER TABLE agents ADD COLUMN listeners TEXT NOT NULL DEFAULT '{}';
