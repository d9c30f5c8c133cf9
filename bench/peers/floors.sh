#!/usr/bin/env bash
# Baselines: plain PostgreSQL with pgbench as the client, without a library.
# Usage: floors.sh URL SECONDS [ONLY], where ONLY is part of a row's name.
set -euo pipefail
url=${1:?usage: floors.sh URL SECONDS [ONLY]}
seconds=${2:?usage: floors.sh URL SECONDS [ONLY]}
only=${3:-}
keys=1000
scripts=$(mktemp -d)
trap 'rm -rf "$scripts"' EXIT

sql() { psql -X -q -A -t -v ON_ERROR_STOP=1 "$url" "$@"; }

max_connections=$(sql -c 'show max_connections')

# row WHAT CLIENTS SCRIPT SETUP COUNT: runs SCRIPT for the given time. COUNT is a query for the number
# of pairs or jobs completed since SETUP; without it, each run of the script counts as one.
row() {
    local what="$1, $2 clients" clients=$2 script=$3 setup=$4 count=$5 out tps ran
    ((clients > 1)) || what="$1, 1 client"
    [[ $what == *"$only"* ]] || return 0
    if ((clients + 10 > max_connections)); then
        printf 'postgresql\t%s\tskipped\n' "$what"
        echo "# max_connections is $max_connections" >&2
        return 0
    fi
    printf '%s\n' "$script" >"$scripts/script.sql"
    [[ -z $setup ]] || sql -c "$setup" 2>/dev/null
    out=$(pgbench -n -M prepared -c "$clients" -j $((clients < 2 ? 1 : 2)) -T "$seconds" -D keys=$keys -f "$scripts/script.sql" "$url" 2>&1) || {
        printf 'postgresql\t%s\tfailed\n' "$what"
        printf '%s\n' "$out" | tail -3 | sed 's/^/# /' >&2
        return 1
    }
    tps=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' <<<"$out")
    if [[ -n $count ]]; then
        # pgbench's rate excludes connection time, so scale it by the jobs per script run.
        ran=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' <<<"$out")
        tps=$(awk -v tps="$tps" -v ran="$ran" -v count="$(sql -c "$count")" 'BEGIN { print ran ? tps * count / ran : 0 }')
    fi
    printf 'postgresql\t%s\t%.0f\n' "$what" "$tps"
}

# Cost of a commit, without and with NOTIFY: PostgreSQL serializes commits that notify.
one="INSERT INTO note (body) VALUES ('{}');"
notify="BEGIN;
INSERT INTO note (body) VALUES ('{}');
SELECT pg_notify('note', '');
COMMIT;"
note='DROP TABLE IF EXISTS note; CREATE TABLE note (body jsonb NOT NULL);'

# Locks. An advisory lock is in memory only and ends with its connection.
own='SELECT pg_advisory_lock(:client_id);
SELECT pg_advisory_unlock(:client_id);'
shared='\set k random(1, :keys)
SELECT pg_advisory_lock(:k);
SELECT pg_advisory_unlock(:k);'
# A row lock for the duration of a transaction; one key per client, so that none is skipped.
held='\set k :client_id + 1
BEGIN;
SELECT k FROM row_lock WHERE k = :k FOR UPDATE SKIP LOCKED;
COMMIT;'
# A lock that outlives its connection: the owner is written in one transaction and removed in
# another. Only pairs that acquired the lock count.
owned='\set k random(1, :keys)
WITH l AS (SELECT k FROM row_lock WHERE k = :k AND owner IS NULL FOR UPDATE SKIP LOCKED),
took AS (UPDATE row_lock AS r SET owner = :client_id, until = now() + interval '"'30 s'"' FROM l WHERE r.k = l.k RETURNING 1)
SELECT count(*) AS got FROM took \gset
\if :got
UPDATE row_lock SET owner = NULL, until = NULL, pairs = pairs + 1 WHERE k = :k AND owner = :client_id;
\endif'
table="DROP TABLE IF EXISTS row_lock;
CREATE TABLE row_lock (k int PRIMARY KEY, owner int, until timestamptz, pairs bigint NOT NULL DEFAULT 0) WITH (fillfactor = 25);
INSERT INTO row_lock SELECT generate_series(1, $keys);"

# Jobs: each client inserts as many as it then takes, so the queue length is bounded by the clients.
queue='DROP TABLE IF EXISTS queue;
CREATE TABLE queue (id bigserial PRIMARY KEY, taken boolean NOT NULL DEFAULT false, body jsonb NOT NULL);
CREATE INDEX queue_ready ON queue (id) WHERE NOT taken;'
finished="SELECT CASE WHEN is_called THEN last_value ELSE 0 END - (SELECT count(*) FROM queue) FROM queue_id_seq"
# Two transactions per job: it runs while its row is locked.
loop="INSERT INTO queue (body) VALUES ('{}');
DELETE FROM queue WHERE id = (SELECT id FROM queue WHERE NOT taken ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED);"
# Three transactions per job, as in job libraries: insert, take, finish.
steps="INSERT INTO queue (body) VALUES ('{}');
WITH took AS (UPDATE queue SET taken = true WHERE id = (SELECT id FROM queue WHERE NOT taken ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id)
SELECT coalesce(max(id), 0) AS id FROM took \\gset
DELETE FROM queue WHERE id = :id;"
# Two transactions per 64 jobs.
batch="INSERT INTO queue (body) SELECT '{}' FROM generate_series(1, 64);
DELETE FROM queue WHERE id = ANY (ARRAY(SELECT id FROM queue WHERE NOT taken ORDER BY id LIMIT 64 FOR UPDATE SKIP LOCKED));"

row 'commit: insert' 1 "$one" "$note" ''
row 'commit: insert' 64 "$one" "$note" ''
row 'commit: insert + notify' 64 "$notify" "$note" ''
for clients in 64 256; do
    row 'advisory lock + unlock, own key' $clients "$own" '' ''
    row "advisory lock + unlock, $keys keys" $clients "$shared" '' ''
    row 'row lock in a transaction, skip locked, own key' $clients "$held" "$table" ''
    row "row lock with an owner, take + release, $keys keys" $clients "$owned" "$table" 'SELECT sum(pairs) FROM row_lock'
done
for clients in 64 256; do
    row 'skip locked: insert, delete' $clients "$loop" "$queue" "$finished"
    row 'skip locked: insert, take, delete' $clients "$steps" "$queue" "$finished"
done
row 'skip locked: insert x64, delete x64' 4 "$batch" "$queue" "$finished"
