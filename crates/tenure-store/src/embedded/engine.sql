-- Format 4: history has events that earlier versions cannot read. `floors` in meta has the token floors
-- of forgotten resources, as JSON.

-- For the jobs of a group, whose names have the form GROUP:REST. Others cost nothing.
CREATE INDEX jobs_of_group ON jobs (key, id) WHERE instr(key, ':') > 0;
