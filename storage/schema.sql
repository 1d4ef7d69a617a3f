-- The tables of a Laneway store. People read the views (views.sql); nobody but the adapter reads these.
-- No foreign keys: they forbid updates of a referenced row and cost every commit.

-- What this file is. One row; written when the file is made.
CREATE TABLE manifest (
    schema_version INTEGER NOT NULL,
    deployment_class VARCHAR NOT NULL,
    created_at_ms BIGINT NOT NULL,
    shards INTEGER NOT NULL,
    views_digest VARCHAR NOT NULL
);

-- Conversations whose identity is durable, written once, at materialization.
CREATE TABLE conversations (
    conversation_id VARCHAR PRIMARY KEY,
    agent VARCHAR NOT NULL,
    created_at_ms BIGINT NOT NULL
);

-- The submission ledger, one row a submission. Columns that a scan needs stand alone; `input` and `detail` are payload:
-- `detail` is a JSON object of the remaining fields, the ownership token among them.
-- Few columns on purpose: each costs a commit about 0.1 ms, whatever its size.
CREATE TABLE ledger (
    submission_id VARCHAR PRIMARY KEY,
    conversation_id VARCHAR NOT NULL,
    queue_sequence BIGINT NOT NULL,
    principal VARCHAR NOT NULL,
    idempotency_key VARCHAR NOT NULL,
    admitted_at_ms BIGINT NOT NULL,
    admission VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    owner_id VARCHAR,
    epoch BIGINT NOT NULL,
    parked BOOLEAN NOT NULL,
    abort_requested BOOLEAN NOT NULL,
    attempts BIGINT NOT NULL,
    not_before_ms BIGINT NOT NULL,
    updated_at_ms BIGINT NOT NULL,
    input VARCHAR NOT NULL,
    detail VARCHAR NOT NULL
);

-- Canonical batches, append only. `body` is the JSON array of the records, the very bytes that `digest` covers; the
-- previous digest is that of the batch before.
CREATE TABLE batch_log (
    conversation_id VARCHAR NOT NULL,
    first_sequence BIGINT NOT NULL,
    last_sequence BIGINT NOT NULL,
    submission_id VARCHAR NOT NULL,
    batch_id VARCHAR NOT NULL,
    producer_id VARCHAR NOT NULL,
    epoch BIGINT NOT NULL,
    schema_version INTEGER NOT NULL,
    digest VARCHAR NOT NULL,
    body VARCHAR NOT NULL,
    committed_at_ms BIGINT NOT NULL
);

-- One conversation among a million batches is read in 3 ms with it, in 8 ms without.
CREATE INDEX batch_log_conversation ON batch_log (conversation_id);

-- The last projection of a conversation; disposable.
CREATE TABLE checkpoints (
    conversation_id VARCHAR PRIMARY KEY,
    tail_sequence BIGINT NOT NULL,
    tail_digest VARCHAR NOT NULL,
    body VARCHAR NOT NULL
);

-- Owners that were renewed and not retired. Only the length of a lease is kept: after a restart of the store each lease
-- runs anew, since an outage of the store must not look like an owner's death.
CREATE TABLE owners (
    owner_id VARCHAR PRIMARY KEY,
    ttl_ms BIGINT NOT NULL
);
