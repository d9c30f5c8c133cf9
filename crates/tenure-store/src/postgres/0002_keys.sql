-- API keys. Servers read the whole table: it is small.

CREATE TABLE tenure.keys (
    id         text COLLATE "C" PRIMARY KEY,
    name       text NOT NULL,
    tenant     text NOT NULL,
    role       text NOT NULL,
    hash       text NOT NULL,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    expires_at bigint,
    used_at    bigint,
    revoked_at bigint,
    revoked_by text
);
COMMENT ON TABLE tenure.keys IS
    'API keys as hashes. The keys themselves are not stored.';
COMMENT ON COLUMN tenure.keys.id IS 'Identifies the key; not secret.';
COMMENT ON COLUMN tenure.keys.tenant IS 'The tenant of the key; * for all tenants.';
COMMENT ON COLUMN tenure.keys.role IS 'viewer, worker, operator or admin.';
COMMENT ON COLUMN tenure.keys.hash IS 'SHA-256 of the whole key, which is random.';
COMMENT ON COLUMN tenure.keys.expires_at IS 'When it becomes invalid.';
COMMENT ON COLUMN tenure.keys.used_at IS 'When it was last used, to about a minute.';
COMMENT ON COLUMN tenure.keys.revoked_by IS 'Who revoked it, and why.';

CREATE TABLE tenure.secrets (
    name  text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE tenure.secrets IS
    'Secrets shared by the servers, for signing cookies and cursors.';

-- tenure_reader may read every other table.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tenure_reader') THEN
        REVOKE ALL ON tenure.secrets FROM tenure_reader;
    END IF;
END $$;
