-- Format 2: jobs and what they leave behind.

-- The state of a resource that was put or worked; nothing for one that is only locked.
ALTER TABLE resources ADD COLUMN state TEXT;
-- What stands in place of the resource's pruned history, as JSON.
ALTER TABLE resources ADD COLUMN base TEXT;

-- Jobs that are over; those that are not live in the record of their resource. Ids sort by the time
-- of the submit, so rows are appended at the end. The jobs of one resource are found by walking
-- back from its record, so no index has to be kept for them.
CREATE TABLE jobs (
    id        BLOB PRIMARY KEY,
    key       TEXT NOT NULL,
    operation TEXT NOT NULL,
    state     TEXT NOT NULL,
    ended     INTEGER NOT NULL,
    body      TEXT NOT NULL
) WITHOUT ROWID;

-- Serves the list of dead letters, which are few among many.
CREATE INDEX jobs_dead ON jobs (id) WHERE state = 'dead';

-- Pieces of the logs of attempts, in the order of commits.
CREATE TABLE logs (
    id      INTEGER PRIMARY KEY,
    job     BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    text    TEXT NOT NULL
);

-- Serves reading and pruning the log of one job.
CREATE INDEX logs_of_job ON logs (job, id);
