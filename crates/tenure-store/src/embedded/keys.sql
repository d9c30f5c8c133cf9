-- Format 3: API keys, as hashes.
CREATE TABLE keys (
    id         TEXT PRIMARY KEY,
    name       TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    role       TEXT NOT NULL,
    hash       TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    used_at    INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT
) WITHOUT ROWID;
