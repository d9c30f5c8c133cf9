-- The record of a resource is written less often than its row; readers replay the history events
-- that it lacks. The column is renamed, so that servers of the previous version, which would not
-- replay them, fail instead of reading an outdated record.

ALTER TABLE tenure.resources RENAME COLUMN body TO record;
COMMENT ON COLUMN tenure.resources.record IS
    'The record in the format of Tenure, as JSON; may lag, see the column told.';
ALTER TABLE tenure.resources ADD COLUMN n bigint NOT NULL DEFAULT 0;
ALTER TABLE tenure.resources ADD COLUMN told bigint NOT NULL DEFAULT 0;
UPDATE tenure.resources SET n = (record::json -> 'chain' ->> 'n')::bigint,
                            told = (record::json -> 'chain' ->> 'n')::bigint;
COMMENT ON COLUMN tenure.resources.n IS 'Number of its history events.';
COMMENT ON COLUMN tenure.resources.told IS
    'Number of history events that the record includes. Later ones are in tenure.history.';

-- LZ4 compresses the journal to less than half at little cost. Not every PostgreSQL build has it.
DO $$
BEGIN
    ALTER TABLE tenure.journal ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE tenure.journal ALTER COLUMN body SET STORAGE EXTENDED;
    ALTER TABLE tenure.resources ALTER COLUMN record SET COMPRESSION lz4;
    ALTER TABLE tenure.resources ALTER COLUMN record SET STORAGE EXTENDED;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;
