-- The keys with which people and programs ask. Found by reading all: there are few.

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
    'Keys of people and programs, without the keys themselves: nobody can ask with what stands here.';
COMMENT ON COLUMN tenure.keys.id IS 'Names the key; no secret.';
COMMENT ON COLUMN tenure.keys.tenant IS 'Whose it is; * for all tenants.';
COMMENT ON COLUMN tenure.keys.role IS 'viewer, worker, operator or admin.';
COMMENT ON COLUMN tenure.keys.hash IS 'SHA-256 of the whole key, which is random.';
COMMENT ON COLUMN tenure.keys.expires_at IS 'From when on it is not good any more.';
COMMENT ON COLUMN tenure.keys.used_at IS 'When it was last used, to within a minute or so.';
COMMENT ON COLUMN tenure.keys.revoked_by IS 'Who took it back, and why.';

CREATE TABLE tenure.secrets (
    name  text PRIMARY KEY,
    value text NOT NULL
);
COMMENT ON TABLE tenure.secrets IS
    'What servers share and nobody else may read: with it they sign cookies and cursors.';

-- Readers read everything else.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tenure_reader') THEN
        REVOKE ALL ON tenure.secrets FROM tenure_reader;
    END IF;
END $$;
