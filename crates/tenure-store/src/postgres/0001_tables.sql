-- The tables of Tenure, for people to read and join; only Tenure writes them.
-- Invariant kept by every writer: the rows of one resource change in one transaction, under the
-- lock of its row in tenure.resources.
-- Instants are milliseconds since 1970, by the clock of the database; tenure.at() makes them readable.

CREATE TABLE tenure.meta (
    key   text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE tenure.meta IS
    'What the store knows of itself: version, incarnation, identity and timeline of the database, when a server last looked.';

CREATE FUNCTION tenure.at(ms bigint) RETURNS timestamptz
    LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN to_timestamp(ms / 1000.0);
COMMENT ON FUNCTION tenure.at IS 'An instant of these tables, for people.';

CREATE TABLE tenure.servers (
    id    text PRIMARY KEY,
    batch bigint NOT NULL,
    seen  bigint NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE tenure.servers IS 'Processes that write here, or did within the last day.';
COMMENT ON COLUMN tenure.servers.batch IS
    'The last batch that was committed: a process whose connection broke at the commit asks here.';

CREATE TABLE tenure.sessions (
    id         text COLLATE "C" PRIMARY KEY,
    tenant     text NOT NULL,
    name       text NOT NULL,
    ttl_ms     bigint NOT NULL,
    expires_at bigint NOT NULL,
    over       text,
    over_at    bigint,
    kinds      text,
    claims     text,
    asked_at   bigint,
    body       text NOT NULL
) WITH (fillfactor = 60);
COMMENT ON TABLE tenure.sessions IS
    'The liveness of processes. A heartbeat changes expires_at and nothing else.';
COMMENT ON COLUMN tenure.sessions.expires_at IS 'When it lapses unless a heartbeat comes first.';
COMMENT ON COLUMN tenure.sessions.over IS 'How it ended; an ended session never comes back.';
COMMENT ON COLUMN tenure.sessions.over_at IS 'When that was written; the row goes a little later.';
COMMENT ON COLUMN tenure.sessions.kinds IS
    'The kinds of jobs that it asks for, as JSON; null for one that asks for none.';
COMMENT ON COLUMN tenure.sessions.claims IS 'Its latest claims that got something, as JSON.';
COMMENT ON COLUMN tenure.sessions.body IS 'The session as Tenure reads it, as JSON.';
-- Serve the sweep.
CREATE INDEX sessions_alive ON tenure.sessions (expires_at) WHERE over IS NULL;
CREATE INDEX sessions_over ON tenure.sessions (id) WHERE over IS NOT NULL;

CREATE TABLE tenure.resources (
    key         text COLLATE "C" PRIMARY KEY,
    tenant      text COLLATE "C" NOT NULL,
    kind        text NOT NULL,
    name        text NOT NULL,
    version     bigint NOT NULL,
    token       bigint NOT NULL,
    running     bigint NOT NULL,
    priority    bigint,
    ready_since bigint,
    wake_at     bigint,
    state       text,
    body_n      bigint NOT NULL,
    body        text NOT NULL,
    base        text
) WITH (fillfactor = 60, toast_tuple_target = 128);
-- Beside the row, so that a change that history tells need not write it again.
ALTER TABLE tenure.resources ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE tenure.resources ALTER COLUMN base SET STORAGE EXTERNAL;
COMMENT ON TABLE tenure.resources IS
    'One row for each resource that anything ever happened to. Its row lock makes changes of the resource come one after the other.';
COMMENT ON COLUMN tenure.resources.key IS 'tenant/kind/name';
COMMENT ON COLUMN tenure.resources.token IS 'The last fencing token that was given out.';
COMMENT ON COLUMN tenure.resources.state IS 'The state of its kind; null for one that is only locked.';
COMMENT ON COLUMN tenure.resources.running IS 'How many of its jobs run.';
COMMENT ON COLUMN tenure.resources.priority IS 'The priority of the job that could start.';
COMMENT ON COLUMN tenure.resources.ready_since IS 'Since when a job could start; null when none can.';
COMMENT ON COLUMN tenure.resources.wake_at IS
    'When it has to be looked at again: a wait runs out, a job comes due.';
COMMENT ON COLUMN tenure.resources.version IS 'Counts the changes of the row.';
COMMENT ON COLUMN tenure.resources.body IS
    'The record as Tenure reads it, as JSON, as it was after line body_n of its history; the lines after that tell the rest.';
COMMENT ON COLUMN tenure.resources.base IS 'What stands in place of its pruned history, as JSON.';
-- Serves claims: only ready resources are in it.
CREATE INDEX resources_ready ON tenure.resources (kind, tenant, priority DESC, ready_since, key)
    WHERE ready_since IS NOT NULL;
-- Serves the sweep.
CREATE INDEX resources_wake ON tenure.resources (wake_at) WHERE wake_at IS NOT NULL;
-- Serves caps: only working resources are in it.
CREATE INDEX resources_running ON tenure.resources (kind, tenant) WHERE running > 0;

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
-- Serves the sweep (what an ended session held) and claims that are sent again.
CREATE INDEX locks_of_session ON tenure.locks (session, request);

CREATE TABLE tenure.waiters (
    key     text COLLATE "C" NOT NULL,
    request text COLLATE "C" NOT NULL,
    session text COLLATE "C" NOT NULL,
    since   bigint NOT NULL,
    until   bigint NOT NULL,
    PRIMARY KEY (key, request)
);
COMMENT ON TABLE tenure.waiters IS 'Requests that wait in the queue of a resource.';
CREATE INDEX waiters_of_session ON tenure.waiters (session);

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
CREATE INDEX jobs_live ON tenure.jobs (key, id) WHERE ended IS NULL;
CREATE INDEX jobs_dead ON tenure.jobs (id) WHERE state = 'dead';

CREATE TABLE tenure.history (
    id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
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
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job     text COLLATE "C" NOT NULL,
    attempt bigint NOT NULL,
    at      bigint NOT NULL,
    text    text NOT NULL
);
COMMENT ON TABLE tenure.logs IS 'What attempts wrote to their logs.';
CREATE INDEX logs_of_job ON tenure.logs (job, id);

-- The fence for users' own transactions on this database. It share-locks the resource and the lock:
-- until the transaction of the caller ends, nobody can take the lock over, and a take-over that came
-- first makes it fail. Its commit and a take-over can never both happen in the wrong order.
CREATE FUNCTION tenure.assert_held(lock text, token bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    resource text := split_part(assert_held.lock, '#', 1);
    name text := coalesce(nullif(split_part(assert_held.lock, '#', 2), ''), 'main');
BEGIN
    PERFORM FROM tenure.resources r WHERE r.key = resource FOR SHARE;
    PERFORM FROM tenure.locks l
        WHERE l.key = resource AND l.lock = name AND l.token = assert_held.token FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock % is not held with token %', assert_held.lock, assert_held.token
            USING ERRCODE = 'TN001', HINT = 'It was lost. Stop the work that it was for.';
    END IF;
END $$;
COMMENT ON FUNCTION tenure.assert_held IS
    'Fails unless the lock (tenant/kind/name, or tenant/kind/name#lock) is held with this token; keeps it so until the transaction ends.';
REVOKE ALL ON FUNCTION tenure.assert_held FROM PUBLIC;
