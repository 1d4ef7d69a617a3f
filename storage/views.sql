-- Views for people: the whole surface of SQL questions. No ownership token and no table of schema.sql is reachable.
-- Times are ISO 8601 text in UTC. A body that is no JSON shows as no records; `laneway verify` names it.

-- Canonical batches with the digest of the batch before.
CREATE OR REPLACE VIEW batches AS
SELECT
    conversation_id,
    first_sequence,
    last_sequence,
    submission_id,
    batch_id,
    producer_id,
    epoch,
    schema_version,
    lag(digest, 1, '') OVER (PARTITION BY conversation_id ORDER BY first_sequence) AS previous_digest,
    digest,
    body,
    strftime(make_timestamp(committed_at_ms * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') AS committed_at
FROM batch_log;

-- One row a record.
CREATE OR REPLACE VIEW records AS
SELECT
    conversation_id,
    first_sequence + CAST(position AS BIGINT) - 1 AS sequence,
    record ->> 'type' AS type,
    submission_id,
    record ->> 'run_id' AS run_id,
    record,
    committed_at
FROM (
    SELECT
        conversation_id,
        first_sequence,
        submission_id,
        strftime(make_timestamp(committed_at_ms * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') AS committed_at,
        unnest(json_extract(CASE WHEN json_valid(body) THEN body ELSE '[]' END, '$[*]')) AS record,
        generate_subscripts(json_extract(CASE WHEN json_valid(body) THEN body ELSE '[]' END, '$[*]'), 1) AS position
    FROM batch_log
);

-- The ledger, one row a submission.
CREATE OR REPLACE VIEW submissions AS
SELECT
    submission_id,
    conversation_id,
    queue_sequence,
    principal,
    idempotency_key,
    admission ->> 'agent' AS agent,
    state,
    attempts,
    owner_id,
    epoch,
    parked,
    abort_requested,
    detail ->> 'run_id' AS run_id,
    detail ->> 'host_id' AS host_id,
    detail ->> 'steers' AS steers,
    detail ->> 'outcome' AS outcome,
    detail ->> 'error_code' AS error_code,
    strftime(make_timestamp(admitted_at_ms * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') AS admitted_at,
    strftime(make_timestamp(updated_at_ms * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') AS updated_at,
    strftime(make_timestamp(CAST(detail ->> 'settled_at_ms' AS BIGINT) * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') AS settled_at,
    CASE WHEN not_before_ms > 0
        THEN strftime(make_timestamp(not_before_ms * 1000), '%Y-%m-%dT%H:%M:%S.%gZ')
    END AS not_before
FROM (
    SELECT * REPLACE (CASE WHEN json_valid(detail) THEN detail ELSE '{}' END AS detail)
    FROM ledger
);

-- Conversations that were quarantined, and who released them.
CREATE OR REPLACE VIEW quarantines AS
SELECT
    conversation_id,
    reason,
    author,
    strftime(make_timestamp(since_ms * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') AS since,
    released_by,
    strftime(make_timestamp(released_at_ms * 1000), '%Y-%m-%dT%H:%M:%S.%gZ') AS released_at
FROM quarantine;

-- Tool calls in the order of their declaration; the last fact of a call gives its state.
CREATE OR REPLACE VIEW tool_calls AS
WITH declared AS (
    SELECT
        conversation_id,
        submission_id,
        run_id,
        CAST(record ->> 'turn' AS BIGINT) AS turn,
        sequence,
        unnest(json_extract(record, '$.tool_calls[*]')) AS call,
        generate_subscripts(json_extract(record, '$.tool_calls[*]'), 1) AS position
    FROM records
    WHERE type = 'model_responded'
),
facts AS (
    SELECT
        record ->> 'call_id' AS call_id,
        sequence,
        CASE type
            WHEN 'tool_call_prepared' THEN 'prepared'
            WHEN 'tool_call_settled' THEN record ->> 'outcome'
            WHEN 'tool_call_unknown' THEN 'unknown'
            ELSE CASE record ->> 'resolution'
                WHEN 'completed_with_result' THEN 'succeeded'
                WHEN 'never_started' THEN 'declared'
                WHEN 'safe_to_retry' THEN 'prepared'
                ELSE 'unknown'
            END
        END AS state,
        CASE WHEN type = 'tool_call_prepared' THEN record ->> 'effect' END AS effect,
        CASE WHEN type IN ('tool_call_settled', 'tool_call_resolved')
            THEN coalesce(json_extract(record, '$.result'), json_extract(record, '$.error'))
        END AS result
    FROM records
    WHERE type IN ('tool_call_prepared', 'tool_call_settled', 'tool_call_unknown', 'tool_call_resolved')
),
last_facts AS (
    SELECT
        call_id,
        arg_max(state, sequence) AS state,
        arg_max(effect, sequence) AS effect,
        arg_max(result, sequence) AS result
    FROM facts
    GROUP BY call_id
)
SELECT
    declared.conversation_id,
    declared.submission_id,
    declared.run_id,
    declared.turn,
    declared.call ->> 'id' AS call_id,
    declared.call ->> 'provider_id' AS provider_id,
    declared.call ->> 'name' AS tool,
    declared.call ->> 'arguments' AS arguments,
    last_facts.effect,
    coalesce(last_facts.state, 'declared') AS state,
    last_facts.result
FROM declared
LEFT JOIN last_facts ON last_facts.call_id = declared.call ->> 'id'
ORDER BY declared.conversation_id, declared.sequence, declared.position;

-- Terminal outcomes as they stand in the log.
CREATE OR REPLACE VIEW settlements AS
SELECT
    conversation_id,
    submission_id,
    sequence,
    record ->> 'settlement_id' AS settlement_id,
    record ->> 'outcome' AS outcome,
    run_id,
    json_extract(record, '$.output') AS output,
    json_extract(record, '$.error') AS error,
    committed_at AS settled_at
FROM records
WHERE type = 'submission_settled';
