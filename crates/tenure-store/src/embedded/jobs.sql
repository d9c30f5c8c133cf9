-- Format 2: jobs and logs.

-- State of the resource; NULL for a resource that is only locked.
ALTER TABLE resources ADD COLUMN state TEXT;
-- Checkpoint of the resource's pruned history, as JSON.
ALTER TABLE resources ADD COLUMN base TEXT;

-- Finished jobs; live jobs are in the record of their resource. Ids sort by submit time, so most
-- rows are appended at the end. The jobs of one resource are found by following links back from its
-- record, so they need no index.
CREATE TABLE jobs (
    id        BLOB PRIMARY KEY,
    key       TEXT NOT NULL,
    operation TEXT NOT NULL,
    state     TEXT NOT NULL,
    ended     INTEGER NOT NULL,
    body      TEXT NOT NULL
) WITHOUT ROWID;

-- For the list of dead letters, which are a small fraction.
CREATE INDEX jobs_dead ON jobs (id) WHERE state = 'dead';

-- Log chunks of attempts, in commit order.
CREATE TABLE logs (
    id      INTEGER PRIMARY KEY,
    job     BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    text    TEXT NOT NULL
);

-- For reading and pruning the log of one job.
CREATE INDEX logs_of_job ON logs (job, id);
