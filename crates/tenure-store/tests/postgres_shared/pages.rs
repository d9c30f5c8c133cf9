//! History pages: reads by resource and in global order.

use std::sync::Arc;

use tenure_core::Token;
use tenure_store::Store;
use tenure_store::postgres::Postgres;
use tenure_store::store::{HistoryQuery, HistoryRow, PAGE_MAX, Retention};
use tenure_store::verify::verify;

use crate::common::*;

async fn read(store: &Arc<Postgres>, query: HistoryQuery) -> Vec<HistoryRow> {
    store.reads().history(query).await.expect("read succeeds")
}

async fn scan(store: &Arc<Postgres>, after: u64, limit: usize) -> Vec<HistoryRow> {
    read(store, HistoryQuery::Scan { after, limit }).await
}

/// Number of events that [`interleaved_history`] creates.
const EVENTS: u64 = 192;

/// Creates interleaved events of three resources, in more pages than one query reads, of different
/// lengths.
async fn interleaved_history(url: &str) -> (Arc<Postgres>, Vec<HistoryRow>) {
    let store = open(url).await;
    apply_one(&*store, open_session(1)).await;
    for round in 0..24_u128 {
        for (n, name) in ["c1", "c2", "c1", "c3"].into_iter().enumerate() {
            acquire_and_release(&*store, name, 100 + 10 * round + n as u128).await;
            if round % 3 == 1 || round % 3 == 2 && n == 3 {
                // A read flushes the projection, so the next event starts a new page.
                scan(&store, 0, 1).await;
            }
        }
    }
    let all = scan(&store, 0, PAGE_MAX).await;
    let positions: Vec<u64> = all.iter().map(|line| line.position).collect();
    assert_eq!(positions, (1..=EVENTS).collect::<Vec<_>>());
    let sql = "SELECT count(*) FROM tenure.pages";
    let pages: i64 =
        user_connection(url).await.query_one(sql, &[]).await.expect("database is up").get(0);
    assert!(pages > 64, "one query reads all {pages} pages");
    (store, all)
}

fn positions(lines: &[HistoryRow]) -> Vec<u64> {
    lines.iter().map(|line| line.position).collect()
}

#[tokio::test]
async fn events_are_read_in_global_order_from_any_position() {
    let (store, _) = interleaved_history(&new_database()).await;
    for at in (0..=EVENTS + 1).step_by(7).chain([EVENTS, EVENTS + 1]) {
        for limit in [1, 7, PAGE_MAX] {
            let after: Vec<u64> = (at + 1..=EVENTS).take(limit).collect();
            assert_eq!(positions(&scan(&store, at, limit).await), after, "{limit} after {at}");
            let newest = HistoryQuery::Newest { tenant: None, before: Some(at), limit };
            let before: Vec<u64> = (1..at.min(EVENTS + 1)).rev().take(limit).collect();
            assert_eq!(positions(&read(&store, newest).await), before, "{limit} before {at}");
        }
    }
    let newest = HistoryQuery::Newest { tenant: Some("t".into()), before: None, limit: 3 };
    assert_eq!(positions(&read(&store, newest).await), [EVENTS, EVENTS - 1, EVENTS - 2]);
    let others = HistoryQuery::Newest { tenant: Some("u".into()), before: None, limit: 3 };
    assert!(read(&store, others).await.is_empty());
    assert_valid_history(&[&store]).await;
}

#[tokio::test]
async fn events_of_a_resource_are_read_newest_first_from_any_position() {
    let (store, all) = interleaved_history(&new_database()).await;
    for name in ["c1", "c2"] {
        let of_resource: Vec<&HistoryRow> =
            all.iter().filter(|line| line.key == key(name)).rev().collect();
        for before in (0..=EVENTS + 1).step_by(11).map(Some).chain([None]) {
            for limit in [1, 5, PAGE_MAX] {
                let query = HistoryQuery::Of { key: key(name), before, limit };
                let is_before = |line: &&&HistoryRow| before.is_none_or(|b| line.position < b);
                let expected = of_resource.iter().filter(is_before);
                let expected: Vec<&HistoryRow> = expected.take(limit).copied().collect();
                let lines = read(&store, query).await;
                assert_eq!(lines.iter().collect::<Vec<_>>(), expected, "{limit} before {before:?}");
            }
        }
    }
}

#[tokio::test]
async fn large_flush_is_divided_into_consecutive_segments() {
    const ROUNDS: u64 = 5_000;
    let url = new_database();
    let store = open(&url).await;
    apply_one(&*store, open_session(1)).await;
    let round = |n: u64| {
        let (name, token) = (if n.is_multiple_of(2) { "c1" } else { "c2" }, Token(n / 2 + 1));
        [acquire(name, 1, 1_000 + u128::from(n)), release(name, token)]
    };
    let commands: Vec<_> = (0..ROUNDS).flat_map(round).collect();
    for batch in commands.chunks(4_000) {
        store.apply(batch.to_vec()).await.expect("database is up");
    }
    let mut all: Vec<HistoryRow> = Vec::new();
    loop {
        let page = scan(&store, all.last().map_or(0, |line| line.position), PAGE_MAX).await;
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    assert_eq!(positions(&all), (1..=2 * ROUNDS).collect::<Vec<_>>());
    let user = user_connection(&url).await;
    let sql = "SELECT max(lines), count(*) FROM ( \
                   SELECT sum(1 + length(lines) - length(replace(lines, E'\\n', '')))::bigint \
                   FROM tenure.pages GROUP BY upto) AS part (lines)";
    let row = user.query_one(sql, &[]).await.expect("database is up");
    let (longest, segments): (i64, i64) = (row.get(0), row.get(1));
    assert!(segments >= 2, "all events are in one segment");
    assert!(longest <= 8_192, "a segment has {longest} events");
    assert_valid_history(&[&store]).await;
}

#[tokio::test]
async fn remaining_events_of_a_pruned_page_are_read_unchanged() {
    let (store, all) = interleaved_history(&new_database()).await;
    let keep = Retention { jobs_ms: 0, dead_ms: 0, history_ms: 0, rows_max: 29 };
    let started = tenure_store::clock::stopwatch();
    let mut total = 0;
    while total < all.len() {
        assert!(started.elapsed() < TIMEOUT, "only {total} events were pruned");
        let pruned = store.prune(keep).await.expect("prune succeeds").lines;
        assert!(pruned <= 29, "{pruned} exceeds rows_max");
        total += pruned;
        assert_eq!(scan(&store, 0, PAGE_MAX).await, all[total..]);
        assert_valid_history(&[&store]).await;
    }
}

#[tokio::test]
async fn history_view_has_one_row_per_event_with_verifiable_hashes() {
    let url = new_database();
    let (_store, all) = interleaved_history(&url).await;
    let user = user_connection(&url).await;
    let sql = "SELECT count(*), count(*) FILTER (WHERE hash <> wanted), min(n), max(n) FROM ( \
                   SELECT n, hash, sha256(coalesce(lag(hash) OVER (ORDER BY n), \
                       sha256(convert_to(key, 'UTF8'))) || convert_to(line, 'UTF8')) AS wanted \
                   FROM tenure.history WHERE key = 't/cluster/c1') AS chain";
    let row = user.query_one(sql, &[]).await.expect("database is up");
    let (lines, wrong): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!((lines, wrong, row.get::<_, i64>(2), row.get::<_, i64>(3)), (96, 0, 1, 96));
    let sql = "SELECT id, line, at FROM tenure.history ORDER BY id DESC LIMIT 1";
    let row = user.query_one(sql, &[]).await.expect("database is up");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (192, &*all[191].text));
    assert!(row.get::<_, i64>(2) > 0);
}

#[tokio::test]
async fn edit_in_the_middle_of_a_page_is_detected() {
    let url = new_database();
    let (store, all) = interleaved_history(&url).await;
    let user = user_connection(&url).await;
    // The last page: no later page would reveal the edit.
    let sql = "SELECT key, n, lines FROM tenure.pages WHERE key = 't/cluster/c1' \
               ORDER BY n DESC LIMIT 1";
    let row = user.query_one(sql, &[]).await.expect("database is up");
    let (key, n, lines): (&str, i64, &str) = (row.get(0), row.get(1), row.get(2));
    let middle = lines.lines().nth(1).expect("page has three events");
    assert_eq!(
        middle.split_once(' ').map(|(_, line)| &line[..1]),
        Some("{"),
        "the event has a stored hash"
    );
    let edited = lines.replacen(middle, &middle.replacen("\"at\":1", "\"at\":2", 1), 1);
    assert_ne!(edited, lines);
    let edit = "UPDATE tenure.pages SET lines = $3 WHERE key = $1 AND n = $2";
    user.execute(edit, &[&key, &n, &edited]).await.expect("statement succeeds");
    let problems = verify(&*open(&url).await).await.expect("read succeeds").problems;
    assert!(problems.iter().any(|problem| problem.to_string().contains(key)), "{problems:?}");
    // The hash of the last event is the stored one, not one derived from the edited event.
    let edited = scan(&store, 0, PAGE_MAX).await;
    let last = |lines: &[HistoryRow]| lines.iter().rfind(|line| line.key.as_str() == key).cloned();
    assert_eq!(last(&edited), last(&all));
    user.execute(edit, &[&key, &n, &lines]).await.expect("statement succeeds");
    assert_eq!(scan(&store, 0, PAGE_MAX).await, all);
    assert_valid_history(&[&store]).await;
}

#[tokio::test]
async fn pages_and_entries_with_all_hashes_are_still_read() {
    let url = new_database();
    let (a, all) = interleaved_history(&url).await;
    let (b, user) = (open(&url).await, user_connection(&url).await);
    let pages = "UPDATE tenure.pages p SET lines = (SELECT string_agg( \
                     h.id || ' ' || encode(h.hash, 'hex') || ' ' || h.line, E'\n' ORDER BY h.id) \
                 FROM tenure.unfold(p.lines) AS h)";
    assert!(user.execute(pages, &[]).await.expect("statement succeeds") > 64);
    assert_eq!(scan(&a, 0, PAGE_MAX).await, all);
    acquire_and_release(&*a, "c1", 9_000).await;
    let entries = "UPDATE tenure.journal SET body = \
                   regexp_replace(body, '^(L \\S+) ', '\\1 ' || repeat('0', 64) || ' ', 'gn')";
    user.execute(entries, &[]).await.expect("statement succeeds");
    let shown = async |store: &Arc<Postgres>| {
        store.reads().show(&key("c1")).await.expect("read succeeds").expect("database is up").record
    };
    acquire_and_release(&*b, "c1", 9_001).await;
    assert_eq!(shown(&b).await, shown(&a).await);
    assert_eq!(scan(&b, EVENTS, PAGE_MAX).await.len(), 4);
    assert_valid_history(&[&a, &b]).await;
}
