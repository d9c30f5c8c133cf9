-- Roles of Tenure with no more than they need. To be run by the owner of the tables, after
-- `tenure migrate`; running it again is harmless, and needed after a migration by another owner.
--
--   tenure_app     what servers need. It may not change the tables, nor what is in history.
--   tenure_reader  may read everything but secrets, and change nothing.
--   tenure_guard   may call tenure.assert_held in transactions of its own, and read nothing.
--
-- They cannot log in. Make those who do their members:
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

-- Nobody gets anything for being anybody.
REVOKE ALL ON SCHEMA tenure FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA tenure FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tenure FROM PUBLIC;

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tenure TO tenure_app;
REVOKE UPDATE ON tenure.journal, tenure.flushes, tenure.pages, tenure.logs FROM tenure_app;
REVOKE INSERT, UPDATE, DELETE ON tenure.history FROM tenure_app;
REVOKE DELETE ON tenure.meta FROM tenure_app;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tenure TO tenure_app;

GRANT SELECT ON ALL TABLES IN SCHEMA tenure TO tenure_reader;
REVOKE ALL ON tenure.secrets FROM tenure_reader;
GRANT EXECUTE ON FUNCTION tenure.at(bigint), tenure.unfold(text) TO tenure_reader;

GRANT EXECUTE ON FUNCTION tenure.assert_held(text, bigint) TO tenure_guard;

-- What later migrations of this owner add.
ALTER DEFAULT PRIVILEGES IN SCHEMA tenure
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO tenure_app;
ALTER DEFAULT PRIVILEGES IN SCHEMA tenure GRANT SELECT ON TABLES TO tenure_reader;
