-- The embedded store: one file, written by one thread, readable with any SQLite tool.
-- Invariant: the history, the sessions and the written records of one batch are in one transaction,
-- so neither a reader nor a crash sees one without the others.

CREATE TABLE meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- One row per session. Heartbeats are not written: a restart renews every session.
CREATE TABLE sessions (
    id   BLOB PRIMARY KEY,
    body TEXT NOT NULL
) WITHOUT ROWID;

-- One row per resource that was ever changed. `live` is 1 while the resource is held, waited for or
-- has live jobs; it is read once, when the store opens. While the server runs, a row may lag behind
-- its history; lines after position `paid` in meta are replayed when the store opens.
CREATE TABLE resources (
    id   INTEGER PRIMARY KEY,
    key  TEXT NOT NULL UNIQUE,
    live INTEGER NOT NULL,
    last INTEGER NOT NULL,
    body TEXT NOT NULL
);

-- Append only, in commit order. `prev` is the previous line of the same resource, so that its
-- history can be read backwards without an index that every commit would have to maintain.
CREATE TABLE history (
    id       INTEGER PRIMARY KEY,
    resource INTEGER NOT NULL,
    prev     INTEGER NOT NULL,
    line     TEXT NOT NULL,
    hash     BLOB NOT NULL
);
