-- Reduces the cost of a batch: tenures are one text instead of two arrays, and hashes that can be
-- derived from earlier events are stored neither in the journal nor in the middle of pages. Pages and
-- entries with all hashes remain readable.

-- Most jobs are finished when they are first flushed and never change again: no free space is needed.
ALTER TABLE tenure.jobs SET (fillfactor = 100);

ALTER TABLE tenure.journal ADD COLUMN held text NOT NULL DEFAULT E'\n';
UPDATE tenure.journal j SET held = E'\n' || (
    SELECT string_agg(key || ' ' || CASE tenures WHEN '' THEN '' ELSE tenures || ' ' END || E'\n', '')
    FROM unnest(j.keys, j.tenures) AS each (key, tenures)) WHERE cardinality(j.keys) > 0;
ALTER TABLE tenure.journal DROP COLUMN keys, DROP COLUMN tenures;
COMMENT ON COLUMN tenure.journal.held IS
    'The resources that it changed, one per line: the key and its tenures after the batch (lock=token), with a space after each.';
ALTER TABLE tenure.journal ALTER COLUMN held SET STORAGE EXTERNAL;
DO $$
BEGIN
    ALTER TABLE tenure.journal ALTER COLUMN held SET COMPRESSION lz4;
    ALTER TABLE tenure.journal ALTER COLUMN held SET STORAGE EXTENDED;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;

CREATE OR REPLACE FUNCTION tenure.assert_held(lock text, token bigint) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    resource text := split_part(assert_held.lock, '#', 1);
    name text := coalesce(nullif(split_part(assert_held.lock, '#', 2), ''), 'main');
    line text := E'\n' || resource || ' ';
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
        SELECT split_part(substr(j.held, strpos(j.held, line) + 1), E'\n', 1) INTO held
            FROM tenure.journal j
            WHERE j.id > (SELECT max(f.position) FROM tenure.flushes f) AND strpos(j.held, line) > 0
            ORDER BY j.id DESC LIMIT 1;
        IF NOT FOUND THEN
            SELECT string_agg(format(' %s=%s ', l.lock, l.token), '') INTO held
                FROM tenure.locks l WHERE l.key = resource;
        END IF;
        -- Rolling back to the implicit savepoint releases the writer lock, and only that one.
        RAISE EXCEPTION USING ERRCODE = 'TN000';
    EXCEPTION WHEN SQLSTATE 'TN000' THEN
        NULL;
    END;
    -- White space in the name could match beyond the key of the line.
    IF resource ~ '[[:space:]]'
        OR coalesce(strpos(held, format(' %s=%s ', name, assert_held.token)), 0) = 0
    THEN
        RAISE EXCEPTION 'the lock % is not held with token %', assert_held.lock, assert_held.token
            USING ERRCODE = 'TN001', HINT = 'It was lost. Stop the work that it was for.';
    END IF;
END $$;

-- Called by readers of the view. It reads no table, so anyone may execute it.
CREATE FUNCTION tenure.unfold(page text) RETURNS TABLE (id bigint, line text, hash bytea)
    LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    part text;
BEGIN
    FOREACH part IN ARRAY string_to_array(page, E'\n') LOOP
        id := split_part(part, ' ', 1)::bigint;
        line := substr(part, strpos(part, '{'));
        hash := CASE WHEN starts_with(split_part(part, ' ', 2), '{')
                     THEN sha256(hash || convert_to(line, 'UTF8'))
                     ELSE decode(split_part(part, ' ', 2), 'hex') END;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION tenure.unfold IS
    'Returns the events of a page of tenure.pages, each with its global position and its hash.';
COMMENT ON COLUMN tenure.pages.lines IS
    'One line per event: global position, hash and event, separated by spaces. Only the first and the last event have a hash: the others are derived.';

CREATE OR REPLACE VIEW tenure.history AS
    SELECT each.id, p.key, (each.line::json ->> 'n')::bigint AS n,
           (each.line::json ->> 'at')::bigint AS at, each.line, each.hash
    FROM tenure.pages p, LATERAL tenure.unfold(p.lines) AS each;
