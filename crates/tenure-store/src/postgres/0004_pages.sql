-- History is kept in pages: the lines of one resource that were told to the tables together. A row
-- and two entries of indexes for each line were a third of what the tables cost.
-- A page is found by its resource and the number of its last line, and by the end of the part of all
-- lines that it belongs to: parts follow each other, and within one the pages mingle.

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
    'What happened, append only: lines of one resource each. The view tenure.history has them one by one.';
COMMENT ON COLUMN tenure.pages.n IS 'The number of its last line, counting those of the resource.';
COMMENT ON COLUMN tenure.pages."first" IS 'The place of its first line among all lines.';
COMMENT ON COLUMN tenure.pages.upto IS
    'The place of the last line of the part it belongs to: all that happened in parts before it was before.';
COMMENT ON COLUMN tenure.pages.lines IS
    'For each line its place among all lines, its hash, and the line itself, with a blank between them.';

COMMENT ON COLUMN tenure.journal.body IS
    'What changed, a line for each: L history, R a record as a whole, S a session, G one that is gone, J a job that is over and that history does not tell, P a piece of a log.';

INSERT INTO tenure.pages
    SELECT key, n, id, id, id || ' ' || encode(hash, 'hex') || ' ' || line FROM tenure.history;
DROP TABLE tenure.history;

CREATE VIEW tenure.history AS
    SELECT split_part(part, ' ', 1)::bigint AS id, p.key, (line::json ->> 'n')::bigint AS n,
           (line::json ->> 'at')::bigint AS at, line, decode(split_part(part, ' ', 2), 'hex') AS hash
    FROM tenure.pages p, LATERAL unnest(string_to_array(p.lines, E'\n')) AS part,
         LATERAL substr(part, strpos(part, '{')) AS line;
COMMENT ON VIEW tenure.history IS
    'What happened, hash-chained for each resource: hash = sha256(hash before, line). Ask for one resource (key), or say from where on (id) with tenure.pages.upto.';
