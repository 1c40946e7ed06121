-- Persisted: never edit a released migration, add another one.

-- kind: 'classic', as before, or 'consumer': a group whose partitions the coordinator assigns. Then `generation_id` is
-- the group's epoch, and `state` is the msgpack of control.consumer_member.SavedConsumerGroup.
ALTER TABLE consumer_groups ADD COLUMN kind TEXT NOT NULL DEFAULT 'classic';

-- The members of those groups, each with its subscription and what it has and shall have. One row each, so that a step
-- of one member does not write all of them. state: msgpack of control.consumer_member.SavedConsumerMember.
CREATE TABLE consumer_group_members (
    group_id TEXT NOT NULL,
    member_id TEXT NOT NULL,
    state BYTEA NOT NULL,
    PRIMARY KEY (group_id, member_id)
) /* sqlite: WITHOUT ROWID */;
