-- Read-only views with the tables and columns of older systems, for dashboards and scripts that
-- read them. The tables of Tenure follow its journal within moments, so nothing may be decided by
-- what a view shows. No view has arguments, specs or results of jobs.

CREATE SCHEMA IF NOT EXISTS ocpctl;

CREATE OR REPLACE VIEW ocpctl.clusters AS
SELECT r.name                                                     AS id,
       split_part(split_part(r.name, ':', 2), '.', 1)             AS name,
       split_part(r.name, ':', 1)                                 AS platform,
       substr(r.name, strpos(r.name, '.') + 1)                    AS base_domain,
       r.state                                                    AS status
  FROM tenure.resources r
 WHERE r.kind = 'cluster' AND r.state IS NOT NULL;

CREATE OR REPLACE VIEW ocpctl.jobs AS
SELECT j.id                                                       AS id,
       split_part(j.key, '/', 3)                                  AS cluster_id,
       j.operation                                                AS job_type,
       upper(j.state)                                             AS status,
       j.body::jsonb -> 'error' ->> 'code'                        AS error_code,
       j.attempt                                                  AS attempt
  FROM tenure.jobs j
 WHERE split_part(j.key, '/', 2) = 'cluster';

CREATE OR REPLACE VIEW ocpctl.job_locks AS
SELECT split_part(l.key, '/', 3)                                  AS cluster_id,
       l.job                                                      AS job_id,
       to_timestamp(l.since / 1000.0)                             AS locked_at,
       s.name                                                     AS locked_by,
       to_timestamp(s.expires_at / 1000.0)                        AS expires_at
  FROM tenure.locks l
  JOIN tenure.sessions s ON s.id = l.session
 WHERE split_part(l.key, '/', 2) = 'cluster' AND l.lock = 'main';
