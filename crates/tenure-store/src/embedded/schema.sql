-- The embedded store: one file, written by one thread, readable with any SQLite tool.
-- Invariant kept by the writer: a record, the sessions and the history of one batch are in one
-- transaction, so no reader and no crash ever sees one without the others.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- One row per living session. Heartbeats are not written: after a restart every session has its
-- full time to live again.
CREATE TABLE sessions (
    id   BLOB PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;

-- One row per resource that anything ever happened to. `live` is 1 while somebody holds or waits;
-- it is read once, when the store opens. Served by the unique index on key. While the server runs a
-- row may be behind its history by up to a second or so; lines after `paid` in meta make up for it.
CREATE TABLE resources (
    id   INTEGER PRIMARY KEY,
    key  TEXT NOT NULL UNIQUE,
    live INTEGER NOT NULL,
    last INTEGER NOT NULL,
    body TEXT NOT NULL
);

-- Append only, in the order of commits. `prev` is the entry before of the same resource, so that
-- one resource's history is read backwards without an index that every commit would pay for.
CREATE TABLE history (
    id       INTEGER PRIMARY KEY,
    resource INTEGER NOT NULL,
    prev     INTEGER NOT NULL,
    line     TEXT NOT NULL,
    hash     BLOB NOT NULL
);
