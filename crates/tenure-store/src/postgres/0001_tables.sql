-- The tables of Tenure, for people to read and join; only Tenure writes them.
-- The journal is what is true; the other tables follow it within a second. One writer at a time
-- appends to the journal, under the advisory lock 7117001; one at a time brings the tables up to it,
-- under 7117003.
-- Instants are milliseconds since 1970, by the clock of the database; tenure.at() makes them readable.

CREATE TABLE tenure.meta (
    key   text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE tenure.meta IS
    'What the store knows of itself: version, incarnation, who the database is, and with which entry of the journal this life of it began.';

CREATE FUNCTION tenure.at(ms bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN to_timestamp(ms / 1000.0);
COMMENT ON FUNCTION tenure.at IS 'An instant of these tables, for people.';

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
-- Written once, read by other servers, gone after a minute: not worth squeezing.
ALTER TABLE tenure.journal ALTER COLUMN keys SET STORAGE EXTERNAL;
ALTER TABLE tenure.journal ALTER COLUMN tenures SET STORAGE EXTERNAL;
ALTER TABLE tenure.journal ALTER COLUMN body SET STORAGE EXTERNAL;
COMMENT ON TABLE tenure.journal IS
    'The latest batches, in the order in which they were committed: this is what is true. The other tables are brought up to it within a second.';
COMMENT ON COLUMN tenure.journal.nonce IS
    'Tells this batch from one that has its number in another life: whose connection broke at the commit asks here.';
COMMENT ON COLUMN tenure.journal.grace IS 'Everybody got a full time to live with it.';
COMMENT ON COLUMN tenure.journal.lines IS 'How many lines of history there are with it.';
COMMENT ON COLUMN tenure.journal.logs IS 'How many pieces of logs there are with it.';
COMMENT ON COLUMN tenure.journal.keys IS 'The resources that it changed.';
COMMENT ON COLUMN tenure.journal.tenures IS
    'What is held on each of them since: lock=token, with a blank between two.';
COMMENT ON COLUMN tenure.journal.body IS
    'What changed, a line for each: L history, R a record as a whole, S a session, G one that is gone, J a job that is over, P a piece of a log.';
-- The begin, so that there always is a last one.
INSERT INTO tenure.journal VALUES (0, 0, 0, false, 0, 0, '{}', '{}', '');

CREATE TABLE tenure.flushes (
    position bigint PRIMARY KEY
);
COMMENT ON TABLE tenure.flushes IS
    'Up to which batch of the journal the other tables tell: the highest counts. A table in place of a row, because a row that changes often gets slow while somebody has a long transaction.';
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
COMMENT ON COLUMN tenure.sessions.expires_at IS 'When it lapses unless a heartbeat comes first.';
COMMENT ON COLUMN tenure.sessions.over IS 'How it ended; an ended session never comes back.';
COMMENT ON COLUMN tenure.sessions.kinds IS
    'The kinds of jobs that it asks for, as JSON; null for one that asks for none.';
COMMENT ON COLUMN tenure.sessions.claims IS 'Its latest claims that got something, as JSON.';
COMMENT ON COLUMN tenure.sessions.body IS 'The session as Tenure reads it, as JSON.';
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
-- Written often, so not squeezed.
ALTER TABLE tenure.resources ALTER COLUMN body SET STORAGE EXTERNAL;
COMMENT ON TABLE tenure.resources IS 'One row for each resource that anything ever happened to.';
COMMENT ON COLUMN tenure.resources.key IS 'tenant/kind/name';
COMMENT ON COLUMN tenure.resources.token IS 'The last fencing token that was given out.';
COMMENT ON COLUMN tenure.resources.state IS 'The state of its kind; null for one that is only locked.';
COMMENT ON COLUMN tenure.resources.running IS 'How many of its jobs run.';
COMMENT ON COLUMN tenure.resources.live IS 'Whether somebody holds or wants it, or has work for it.';
COMMENT ON COLUMN tenure.resources.body IS 'The record as Tenure reads it, as JSON.';
COMMENT ON COLUMN tenure.resources.base IS 'What stands in place of its pruned history, as JSON.';
-- Serves the start of a server, which reads only these.
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
COMMENT ON TABLE tenure.locks IS 'The tenures of the present: who holds which lock.';
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
COMMENT ON TABLE tenure.jobs IS 'All jobs, over or not. Ids sort by the time of the submit.';
COMMENT ON COLUMN tenure.jobs.key IS 'The resource in tenure.resources.';
COMMENT ON COLUMN tenure.jobs.due IS 'When it may start.';
COMMENT ON COLUMN tenure.jobs.ended IS 'When it was over; null while it is not.';
COMMENT ON COLUMN tenure.jobs.previous IS 'The job of the same resource that was over before this one.';
COMMENT ON COLUMN tenure.jobs.body IS 'The job as Tenure reads it, as JSON.';
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
    'What happened, append only, hash-chained for each resource: hash = sha256(hash before, line).';
COMMENT ON COLUMN tenure.history.n IS 'Counts the lines of the resource.';
CREATE UNIQUE INDEX history_of_resource ON tenure.history (key, n);

CREATE TABLE tenure.logs (
    id      bigint PRIMARY KEY,
    job     text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    at      bigint NOT NULL,
    text    text NOT NULL
);
COMMENT ON TABLE tenure.logs IS 'What attempts wrote to their logs.';
CREATE INDEX logs_of_job ON tenure.logs (job, id);

-- The fence for users' own transactions on this database. It notes that this transaction relies on
-- the resource (in a lock that everybody who relies on anything shares, and in one of the resource)
-- and then looks, while nobody writes. Whoever writes next sees that somebody relies on it and
-- leaves the resource as it is until the transaction of the caller ends. So its commit and a
-- take-over can never both happen in the wrong order.
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
        -- Nobody need wait for the rest of the transaction: going back frees the last lock only.
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
    'Fails unless the lock (tenant/kind/name, or tenant/kind/name#lock) is held with this token; keeps it so until the transaction ends.';
REVOKE ALL ON FUNCTION tenure.assert_held FROM PUBLIC;
