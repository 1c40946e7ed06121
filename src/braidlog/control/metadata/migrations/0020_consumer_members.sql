-- Persisted: never edit a released migration, add another one.

-- kind: 'classic', as before, or 'consumer': a group whose partitions the coordinator assigns. There `generation_id` is
-- the group epoch, and `state` is the msgpack of control.groups.consumer.member.SavedConsumerGroup.
ALTER TABLE consumer_groups ADD COLUMN kind TEXT NOT NULL DEFAULT 'classic';

-- The members of those groups, with their subscriptions and assignments. Each has a row of its own, so that a step
-- of one member does not write them all. state: msgpack of control.groups.consumer.member.SavedConsumerMember.
CREATE TABLE consumer_group_members (
    group_id TEXT NOT NULL,
    member_id TEXT NOT NULL,
    state BYTEA NOT NULL,
    PRIMARY KEY (group_id, member_id)
) /* sqlite: WITHOUT ROWID */;
