-- History is stored in pages: the events of one resource that were flushed together. One row and two
-- index entries per event made up a third of the cost of a flush.
-- A page is indexed by its resource and the number of its last event, and by the end of its segment.
-- A segment is a range of the global order; the pages of one segment interleave, those of different
-- segments do not.

CREATE TABLE tenure.pages (
    key     text COLLATE "C" NOT NULL,
    n       bigint NOT NULL,
    "first" bigint NOT NULL,
    upto    bigint NOT NULL,
    lines   text NOT NULL,
    PRIMARY KEY (key, n)
);
CREATE INDEX pages_upto ON tenure.pages (upto);
DO $$
BEGIN
    ALTER TABLE tenure.pages ALTER COLUMN lines SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported THEN
    NULL;
END $$;
COMMENT ON TABLE tenure.pages IS
    'The append-only history, several events of one resource per row. The view tenure.history has one row per event.';
COMMENT ON COLUMN tenure.pages.n IS 'The number of its last event within its resource.';
COMMENT ON COLUMN tenure.pages."first" IS 'The global position of its first event.';
COMMENT ON COLUMN tenure.pages.upto IS
    'The global position of the last event of its segment. All events of earlier segments precede it.';
COMMENT ON COLUMN tenure.pages.lines IS
    'One line per event: global position, hash and event, separated by spaces.';

COMMENT ON COLUMN tenure.journal.body IS
    'The changes, one per line: L history event, R complete record, S session, G removed session, J finished job that is not in history, P log piece.';

INSERT INTO tenure.pages
    SELECT key, n, id, id, id || ' ' || encode(hash, 'hex') || ' ' || line FROM tenure.history;
DROP TABLE tenure.history;

CREATE VIEW tenure.history AS
    SELECT split_part(part, ' ', 1)::bigint AS id, p.key, (line::json ->> 'n')::bigint AS n,
           (line::json ->> 'at')::bigint AS at, line, decode(split_part(part, ' ', 2), 'hex') AS hash
    FROM tenure.pages p, LATERAL unnest(string_to_array(p.lines, E'\n')) AS part,
         LATERAL substr(part, strpos(part, '{')) AS line;
COMMENT ON VIEW tenure.history IS
    'The history, hash-chained per resource: hash = sha256(previous hash, line). Filter by resource (key), or by position (id) with tenure.pages.upto.';
