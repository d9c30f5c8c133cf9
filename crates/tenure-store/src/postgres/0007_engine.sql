-- The journal and the history have what servers of the previous version cannot read: status, timers,
-- deferred attempts, and forgotten resources. The version of the schema stops them.

COMMENT ON COLUMN tenure.journal.body IS
    'The changes, one per line: L history event, F forgotten resource, R complete record, S session, G removed session, J finished job that is not in history, P log piece.';
COMMENT ON TABLE tenure.meta IS
    'Metadata of the store: schema version, incarnation, identity of the database, the journal entry at which the incarnation started, and the token floors of forgotten resources.';

-- For the jobs of a group, whose names have the form GROUP:REST. Others cost nothing.
CREATE INDEX jobs_of_group ON tenure.jobs (key, id) WHERE strpos(key, ':') > 0;
