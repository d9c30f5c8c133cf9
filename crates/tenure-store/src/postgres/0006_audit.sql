-- The audit log that all servers share: actions of operators and refused calls. Calls of workers are
-- in the files of each server only.

CREATE TABLE tenure.audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid       text NOT NULL UNIQUE,
    at        bigint NOT NULL,
    server    text NOT NULL,
    class     text NOT NULL,
    tenant    text,
    principal text,
    key       text,
    action    text NOT NULL,
    entry     text NOT NULL
);
CREATE INDEX audit_at ON tenure.audit (at, id);
CREATE INDEX audit_class ON tenure.audit (class, id);
COMMENT ON TABLE tenure.audit IS
    'Actions of operators and refused calls on all servers. Servers delete old rows.';
COMMENT ON COLUMN tenure.audit.uid IS
    'Random id from the server, so that a repeated append adds nothing.';
COMMENT ON COLUMN tenure.audit.at IS 'Time of the call, by the clock of the server, in milliseconds.';
COMMENT ON COLUMN tenure.audit.server IS 'The server that was called.';
COMMENT ON COLUMN tenure.audit.class IS 'operators or denied; each is pruned separately.';
COMMENT ON COLUMN tenure.audit.tenant IS 'The tenant on whose behalf the call was made.';
COMMENT ON COLUMN tenure.audit.principal IS 'Name of the key; null if the caller was not authenticated.';
COMMENT ON COLUMN tenure.audit.key IS 'Id of the key.';
COMMENT ON COLUMN tenure.audit.entry IS 'The whole entry, as JSON.';

-- Servers append and prune.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tenure_app') THEN
        REVOKE UPDATE ON tenure.audit FROM tenure_app;
    END IF;
END $$;
