-- The record of a resource is written less often than its row: what it does not tell yet is in its
-- history. It gets another name, so that a server of the version before, which does not know that,
-- reads nothing rather than what is out of date.

ALTER TABLE tenure.resources RENAME COLUMN body TO record;
COMMENT ON COLUMN tenure.resources.record IS
    'The record as Tenure reads it, as JSON; see the column told.';
ALTER TABLE tenure.resources ADD COLUMN n bigint NOT NULL DEFAULT 0;
ALTER TABLE tenure.resources ADD COLUMN told bigint NOT NULL DEFAULT 0;
UPDATE tenure.resources SET n = (record::json -> 'chain' ->> 'n')::bigint,
                            told = (record::json -> 'chain' ->> 'n')::bigint;
COMMENT ON COLUMN tenure.resources.n IS 'How many lines of history it has.';
COMMENT ON COLUMN tenure.resources.told IS
    'How many of them the record tells. The others, in tenure.history, have to be read with it.';

-- LZ4 squeezes the journal to less than half for next to nothing. Not every build of PostgreSQL has it.
DO $$
BEGIN
    ALTER TABLE tenure.journal ALTER COLUMN body SET COMPRESSION lz4;
    ALTER TABLE tenure.journal ALTER COLUMN body SET STORAGE EXTENDED;
    ALTER TABLE tenure.resources ALTER COLUMN record SET COMPRESSION lz4;
    ALTER TABLE tenure.resources ALTER COLUMN record SET STORAGE EXTENDED;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;
