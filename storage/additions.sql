-- Tables that came after the first files were written. They are made where they are missing, whenever a file is opened
-- for writing whose views are not those of this program.

-- Conversations whose lanes nobody claims, and why. A row stays when the conversation is released, to tell who did it.
CREATE TABLE IF NOT EXISTS quarantine (
    conversation_id VARCHAR PRIMARY KEY,
    reason VARCHAR NOT NULL,
    author VARCHAR NOT NULL,
    since_ms BIGINT NOT NULL,
    released_by VARCHAR,
    released_at_ms BIGINT
);

-- In a file of a store of several shards: its number, from 0. How many there are stands in the manifest.
CREATE TABLE IF NOT EXISTS shard (
    position INTEGER NOT NULL
);
