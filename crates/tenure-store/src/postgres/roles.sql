-- Least-privilege roles of Tenure. The owner of the tables runs this script after `tenure migrate`.
-- It is idempotent, and has to be run again after a migration by another owner.
--
--   tenure_app     for servers; cannot alter tables or change history.
--   tenure_reader  can read everything except secrets; read-only.
--   tenure_guard   can call tenure.assert_held in its own transactions; cannot read anything.
--
-- The roles cannot log in. Grant them to login roles:
--   CREATE ROLE server1 LOGIN PASSWORD '…' IN ROLE tenure_app;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['tenure_app', 'tenure_reader', 'tenure_guard'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I NOLOGIN', name);
        END IF;
        EXECUTE format('GRANT CONNECT ON DATABASE %I TO %I', current_database(), name);
        EXECUTE format('GRANT USAGE ON SCHEMA tenure TO %I', name);
    END LOOP;
END $$;

-- No privileges for PUBLIC.
REVOKE ALL ON SCHEMA tenure FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure FROM PUBLIC;

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO tenure_app;
REVOKE UPDATE ON tenure.journal, tenure.flushes, tenure.pages, tenure.logs, tenure.audit
    FROM tenure_app;
REVOKE INSERT, UPDATE, DELETE ON tenure.history FROM tenure_app;
REVOKE DELETE ON tenure.meta FROM tenure_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure TO tenure_app;

GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO tenure_reader;
REVOKE ALL ON tenure.secrets FROM tenure_reader;
GRANT EXECUTE ON FUNCTION tenure.at(bigint), tenure.unfold(text) TO tenure_reader;

GRANT EXECUTE ON FUNCTION tenure.assert_held(text, bigint) TO tenure_guard;

-- Tables of later migrations by this owner.
ALTER DEFAULT PRIVILEGES IN SCHEMA tenure
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO tenure_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA tenure GRANT SELECT ON TABLES TO tenure_reader;
