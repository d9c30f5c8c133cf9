-- The tables of Tenure. Users may read and join them; only Tenure writes them.
-- The journal is the source of truth. The other tables are its projection and lag it by less than a
-- second. One server at a time appends to the journal, under advisory lock 7117001; one at a time
-- flushes the projection, under 7117003.
-- Instants are milliseconds since the Unix epoch, by the database clock; tenure.at() converts them.

CREATE TABLE tenure.meta (
    key   text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE tenure.meta IS
    'Metadata of the store: schema version, incarnation, identity of the database, and the journal entry at which the incarnation started.';

CREATE FUNCTION tenure.at(ms bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN to_timestamp(ms / 1000.0);
COMMENT ON FUNCTION tenure.at IS 'Converts an instant of these tables to a timestamp.';

CREATE TABLE tenure.journal (
    id      bigint PRIMARY KEY,
    nonce   bigint NOT NULL,
    at      bigint NOT NULL,
    grace   boolean NOT NULL,
    lines   bigint NOT NULL,
    logs    bigint NOT NULL,
    keys    text[] NOT NULL,
    tenures text[] NOT NULL,
    body    text NOT NULL
);
-- Written once, read by other servers, deleted after a minute: not worth compressing.
ALTER TABLE tenure.journal ALTER COLUMN keys SET STORAGE EXTERNAL;
ALTER TABLE tenure.journal ALTER COLUMN tenures SET STORAGE EXTERNAL;
ALTER TABLE tenure.journal ALTER COLUMN body SET STORAGE EXTERNAL;
COMMENT ON TABLE tenure.journal IS
    'The latest batches in commit order: the source of truth. The other tables lag it by less than a second.';
COMMENT ON COLUMN tenure.journal.nonce IS
    'Distinguishes the batch from one with the same id in another incarnation. Resolves commits whose connection broke.';
COMMENT ON COLUMN tenure.journal.grace IS 'Whether it renewed every session to its full TTL.';
COMMENT ON COLUMN tenure.journal.lines IS 'Total number of history events up to and including it.';
COMMENT ON COLUMN tenure.journal.logs IS 'Total number of log pieces up to and including it.';
COMMENT ON COLUMN tenure.journal.keys IS 'The resources that it changed.';
COMMENT ON COLUMN tenure.journal.tenures IS
    'The tenures of each of them after the batch: lock=token, separated by spaces.';
COMMENT ON COLUMN tenure.journal.body IS
    'The changes, one per line: L history event, R complete record, S session, G removed session, J finished job, P log piece.';
-- A first entry, so that the journal always has a last one.
INSERT INTO tenure.journal VALUES (0, 0, 0, false, 0, 0, '{}', '{}', '');

CREATE TABLE tenure.flushes (
    position bigint PRIMARY KEY
);
COMMENT ON TABLE tenure.flushes IS
    'The journal entry up to which the other tables are flushed: the highest position counts. Rows are inserted rather than updated, because a frequently updated row gets slow while a long transaction is open.';
INSERT INTO tenure.flushes VALUES (0);

CREATE TABLE tenure.sessions (
    id         text COLLATE "C" PRIMARY KEY,
    tenant     text NOT NULL,
    name       text NOT NULL,
    ttl_ms     bigint NOT NULL,
    expires_at bigint NOT NULL,
    over       text,
    kinds      text,
    claims     text,
    asked_at   bigint,
    body       text NOT NULL
) WITH (fillfactor = 60);
COMMENT ON TABLE tenure.sessions IS
    'The liveness of processes. A heartbeat changes expires_at and nothing else.';
COMMENT ON COLUMN tenure.sessions.expires_at IS 'When it expires unless a heartbeat renews it.';
COMMENT ON COLUMN tenure.sessions.over IS 'How it ended: lapsed or closed. An ended session never revives.';
COMMENT ON COLUMN tenure.sessions.kinds IS
    'The kinds of jobs that it claims, as JSON; null if it is not a worker.';
COMMENT ON COLUMN tenure.sessions.claims IS 'Its latest claims that got jobs, as JSON.';
COMMENT ON COLUMN tenure.sessions.body IS 'The session in the format of Tenure, as JSON.';
CREATE TABLE tenure.resources (
    key     text COLLATE "C" PRIMARY KEY,
    tenant  text NOT NULL,
    kind    text NOT NULL,
    name    text NOT NULL,
    token   bigint NOT NULL,
    state   text,
    running bigint NOT NULL,
    live    boolean NOT NULL,
    body    text NOT NULL,
    base    text
) WITH (fillfactor = 60);
-- Written often, so not compressed.
ALTER TABLE tenure.resources ALTER COLUMN body SET STORAGE EXTERNAL;
COMMENT ON TABLE tenure.resources IS 'One row for each resource that was ever locked or had a job.';
COMMENT ON COLUMN tenure.resources.key IS 'tenant/kind/name';
COMMENT ON COLUMN tenure.resources.token IS 'The last fencing token that was granted.';
COMMENT ON COLUMN tenure.resources.state IS 'Its state; null if it was only locked.';
COMMENT ON COLUMN tenure.resources.running IS 'Number of its running jobs.';
COMMENT ON COLUMN tenure.resources.live IS 'Whether it has a holder, a waiter or an unfinished job.';
COMMENT ON COLUMN tenure.resources.body IS 'The record in the format of Tenure, as JSON.';
COMMENT ON COLUMN tenure.resources.base IS 'The checkpoint that replaces its pruned history, as JSON.';
-- For starting servers, which read only live resources.
CREATE INDEX resources_live ON tenure.resources (key) WHERE live;

CREATE TABLE tenure.locks (
    key     text COLLATE "C" NOT NULL,
    lock    text COLLATE "C" NOT NULL,
    token   bigint NOT NULL,
    session text COLLATE "C" NOT NULL,
    request text COLLATE "C" NOT NULL,
    purpose text,
    job     text COLLATE "C",
    since   bigint NOT NULL,
    PRIMARY KEY (key, lock)
) WITH (fillfactor = 70);
COMMENT ON TABLE tenure.locks IS 'Current tenures: which session holds which lock.';
COMMENT ON COLUMN tenure.locks.token IS 'The fencing token: see tenure.assert_held.';
COMMENT ON COLUMN tenure.locks.session IS 'The session in tenure.sessions that holds it.';

CREATE TABLE tenure.waiters (
    key     text COLLATE "C" NOT NULL,
    request text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    since   bigint NOT NULL,
    until   bigint NOT NULL,
    PRIMARY KEY (key, request)
);
COMMENT ON TABLE tenure.waiters IS 'Requests that wait in the queue of a resource.';

CREATE TABLE tenure.jobs (
    id        text COLLATE "C" PRIMARY KEY,
    key       text COLLATE "C" NOT NULL,
    operation text NOT NULL,
    state     text NOT NULL,
    attempt   bigint NOT NULL,
    due       bigint NOT NULL,
    ended     bigint,
    previous  text COLLATE "C",
    body      text NOT NULL
) WITH (fillfactor = 70);
COMMENT ON TABLE tenure.jobs IS 'All jobs, finished or not. Ids sort by submit time.';
COMMENT ON COLUMN tenure.jobs.key IS 'The resource in tenure.resources.';
COMMENT ON COLUMN tenure.jobs.due IS 'When it may start.';
COMMENT ON COLUMN tenure.jobs.ended IS 'When it finished; null until then.';
COMMENT ON COLUMN tenure.jobs.previous IS 'The job of the same resource that finished before this one.';
COMMENT ON COLUMN tenure.jobs.body IS 'The job in the format of Tenure, as JSON.';
CREATE INDEX jobs_dead ON tenure.jobs (id) WHERE state = 'dead';

CREATE TABLE tenure.history (
    id   bigint PRIMARY KEY,
    key  text COLLATE "C" NOT NULL,
    n    bigint NOT NULL,
    at   bigint NOT NULL,
    line text NOT NULL,
    hash bytea NOT NULL
);
COMMENT ON TABLE tenure.history IS
    'The append-only history, hash-chained per resource: hash = sha256(previous hash, line).';
COMMENT ON COLUMN tenure.history.n IS 'The number of the event within its resource.';
CREATE UNIQUE INDEX history_of_resource ON tenure.history (key, n);

CREATE TABLE tenure.logs (
    id      bigint PRIMARY KEY,
    job     text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    at      bigint NOT NULL,
    text    text NOT NULL
);
COMMENT ON TABLE tenure.logs IS 'Logs of attempts.';
CREATE INDEX logs_of_job ON tenure.logs (job, id);

-- The guard for user transactions on this database. It takes two shared advisory locks until the end
-- of the transaction, one common to all callers and one of the resource, and then checks the tenure
-- while it blocks the writer. The next writer sees the shared locks and does not change the resource
-- until the caller's transaction ends. So a take-over never precedes the commit of a caller that has
-- passed the check.
CREATE FUNCTION tenure.assert_held(lock text, token bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    resource text := split_part(assert_held.lock, '#', 1);
    name text := coalesce(nullif(split_part(assert_held.lock, '#', 2), ''), 'main');
    held text;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'tenure.assert_held needs a transaction that is READ COMMITTED, not %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'TN002', HINT = 'Others see what was true when they began.';
    END IF;
    PERFORM pg_advisory_xact_lock_shared(7117002);
    PERFORM pg_advisory_xact_lock_shared(
        ('x' || left(encode(sha256(convert_to(resource, 'UTF8')), 'hex'), 16))::bit(64)::bigint);
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(7117001);
        SELECT j.tenures[array_position(j.keys, resource)] INTO held FROM tenure.journal j
            WHERE j.id > (SELECT max(f.position) FROM tenure.flushes f) AND resource = ANY (j.keys)
            ORDER BY j.id DESC LIMIT 1;
        IF NOT FOUND THEN
            SELECT string_agg(l.lock || '=' || l.token, ' ') INTO held
                FROM tenure.locks l WHERE l.key = resource;
        END IF;
        -- Rolling back to the implicit savepoint releases the writer lock, and only that one.
        RAISE EXCEPTION USING ERRCODE = 'TN000';
    EXCEPTION WHEN SQLSTATE 'TN000' THEN
        NULL;
    END;
    IF coalesce(position(format(' %s=%s ', name, assert_held.token) IN ' ' || held || ' '), 0) = 0
    THEN
        RAISE EXCEPTION 'the lock % is not held with token %', assert_held.lock, assert_held.token
            USING ERRCODE = 'TN001', HINT = 'It was lost. Stop the work that it was for.';
    END IF;
END $$;
COMMENT ON FUNCTION tenure.assert_held IS
    'Fails unless the lock (tenant/kind/name, or tenant/kind/name#lock) is held with this token; the tenure cannot end before the transaction does.';
REVOKE ALL ON FUNCTION tenure.assert_held FROM PUBLIC;
