//! History is kept in pages, and read line by line: by resource, and in the order of all.

use std::sync::Arc;

use tenure_core::Token;
use tenure_store::Store;
use tenure_store::postgres::Postgres;
use tenure_store::store::{HistoryQuery, Line, PAGE_MAX, Retention};
use tenure_store::verify::verify;

use crate::bed::*;

async fn read(store: &Arc<Postgres>, query: HistoryQuery) -> Vec<Line> {
    store.reads().history(query).await.expect("it reads")
}

async fn scan(store: &Arc<Postgres>, after: u64, limit: usize) -> Vec<Line> {
    read(store, HistoryQuery::Scan { after, limit }).await
}

/// How many lines there are.
const LINES: u64 = 192;

/// Three resources whose lines mingle, in more pages than are read at once, short and long.
async fn mingled(url: &str) -> (Arc<Postgres>, Vec<Line>) {
    let store = open(url).await;
    one(&*store, session(1)).await;
    for round in 0..24_u128 {
        for (n, name) in ["c1", "c2", "c1", "c3"].into_iter().enumerate() {
            take_and_release(&*store, name, 100 + 10 * round + n as u128).await;
            if round % 3 == 1 || round % 3 == 2 && n == 3 {
                // Whoever reads brings the tables up, and what comes next is on another page.
                scan(&store, 0, 1).await;
            }
        }
    }
    let all = scan(&store, 0, PAGE_MAX).await;
    let positions: Vec<u64> = all.iter().map(|line| line.position).collect();
    assert_eq!(positions, (1..=LINES).collect::<Vec<_>>());
    let sql = "SELECT count(*) FROM tenure.pages";
    let pages: i64 = raw(url).await.query_one(sql, &[]).await.expect("it is there").get(0);
    assert!(pages > 64, "{pages} pages are read at once");
    (store, all)
}

fn positions(lines: &[Line]) -> Vec<u64> {
    lines.iter().map(|line| line.position).collect()
}

#[tokio::test]
async fn lines_are_read_in_the_order_of_all_from_wherever_one_begins() {
    let (store, _) = mingled(&database()).await;
    for at in (0..=LINES + 1).step_by(7).chain([LINES, LINES + 1]) {
        for limit in [1, 7, PAGE_MAX] {
            let after: Vec<u64> = (at + 1..=LINES).take(limit).collect();
            assert_eq!(positions(&scan(&store, at, limit).await), after, "{limit} after {at}");
            let newest = HistoryQuery::Newest { tenant: None, before: Some(at), limit };
            let before: Vec<u64> = (1..at.min(LINES + 1)).rev().take(limit).collect();
            assert_eq!(positions(&read(&store, newest).await), before, "{limit} before {at}");
        }
    }
    let newest = HistoryQuery::Newest { tenant: Some("t".into()), before: None, limit: 3 };
    assert_eq!(positions(&read(&store, newest).await), [LINES, LINES - 1, LINES - 2]);
    let others = HistoryQuery::Newest { tenant: Some("u".into()), before: None, limit: 3 };
    assert!(read(&store, others).await.is_empty());
    verified(&[&store]).await;
}

#[tokio::test]
async fn lines_of_a_resource_are_read_the_newest_first_from_wherever_one_begins() {
    let (store, all) = mingled(&database()).await;
    for name in ["c1", "c2"] {
        let mine: Vec<&Line> = all.iter().filter(|line| line.key == key(name)).rev().collect();
        for before in (0..=LINES + 1).step_by(11).map(Some).chain([None]) {
            for limit in [1, 5, PAGE_MAX] {
                let query = HistoryQuery::Of { key: key(name), before, limit };
                let wanted = mine.iter().filter(|line| before.is_none_or(|b| line.position < b));
                let wanted: Vec<&Line> = wanted.take(limit).copied().collect();
                let got = read(&store, query).await;
                assert_eq!(got.iter().collect::<Vec<_>>(), wanted, "{limit} before {before:?}");
            }
        }
    }
}

#[tokio::test]
async fn what_is_told_at_once_is_divided_into_parts_that_follow_each_other() {
    const ROUNDS: u64 = 5_000;
    let url = database();
    let store = open(&url).await;
    one(&*store, session(1)).await;
    let round = |n: u64| {
        let (name, token) = (if n.is_multiple_of(2) { "c1" } else { "c2" }, Token(n / 2 + 1));
        [acquire(name, 1, 1_000 + u128::from(n)), release(name, token)]
    };
    let commands: Vec<_> = (0..ROUNDS).flat_map(round).collect();
    for batch in commands.chunks(4_000) {
        store.apply(batch.to_vec()).await.expect("the server is there");
    }
    let mut all: Vec<Line> = Vec::new();
    loop {
        let page = scan(&store, all.last().map_or(0, |line| line.position), PAGE_MAX).await;
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    assert_eq!(positions(&all), (1..=2 * ROUNDS).collect::<Vec<_>>());
    let user = raw(&url).await;
    let sql = "SELECT max(lines), count(*) FROM ( \
                   SELECT sum(1 + length(lines) - length(replace(lines, E'\\n', '')))::bigint \
                   FROM tenure.pages GROUP BY upto) AS part (lines)";
    let row = user.query_one(sql, &[]).await.expect("it is there");
    let (longest, parts): (i64, i64) = (row.get(0), row.get(1));
    assert!(parts >= 2, "all lines are in one part");
    assert!(longest <= 8_192, "a part has {longest} lines");
    verified(&[&store]).await;
}

#[tokio::test]
async fn what_is_left_of_a_page_is_read_as_before() {
    let (store, all) = mingled(&database()).await;
    let keep = Retention { jobs_ms: 0, dead_ms: 0, history_ms: 0, rows_max: 29 };
    let started = tenure_store::clock::stopwatch();
    let mut gone = 0;
    while gone < all.len() {
        assert!(started.elapsed() < PATIENCE, "only {gone} lines were pruned");
        let pruned = store.prune(keep).await.expect("it prunes").lines;
        assert!(pruned <= 29, "{pruned} are more than allowed at once");
        gone += pruned;
        assert_eq!(scan(&store, 0, PAGE_MAX).await, all[gone..]);
        verified(&[&store]).await;
    }
}

#[tokio::test]
async fn people_have_the_lines_one_by_one_and_can_check_them() {
    let url = database();
    let (_store, all) = mingled(&url).await;
    let user = raw(&url).await;
    let sql = "SELECT count(*), count(*) FILTER (WHERE hash <> wanted), min(n), max(n) FROM ( \
                   SELECT n, hash, sha256(coalesce(lag(hash) OVER (ORDER BY n), \
                       sha256(convert_to(key, 'UTF8'))) || convert_to(line, 'UTF8')) AS wanted \
                   FROM tenure.history WHERE key = 't/cluster/c1') AS chain";
    let row = user.query_one(sql, &[]).await.expect("it is there");
    let (lines, wrong): (i64, i64) = (row.get(0), row.get(1));
    assert_eq!((lines, wrong, row.get::<_, i64>(2), row.get::<_, i64>(3)), (96, 0, 1, 96));
    let sql = "SELECT id, line, at FROM tenure.history ORDER BY id DESC LIMIT 1";
    let row = user.query_one(sql, &[]).await.expect("it is there");
    assert_eq!((row.get::<_, i64>(0), row.get::<_, &str>(1)), (192, &*all[191].text));
    assert!(row.get::<_, i64>(2) > 0);
}

#[tokio::test]
async fn a_line_that_was_edited_in_the_middle_of_a_page_is_found() {
    let url = database();
    let (store, all) = mingled(&url).await;
    let user = raw(&url).await;
    // The last one, which no other follows that would show it.
    let sql = "SELECT key, n, lines FROM tenure.pages WHERE key = 't/cluster/c1' \
               ORDER BY n DESC LIMIT 1";
    let row = user.query_one(sql, &[]).await.expect("it is there");
    let (key, n, lines): (&str, i64, &str) = (row.get(0), row.get(1), row.get(2));
    let middle = lines.lines().nth(1).expect("it has three lines");
    assert_eq!(middle.split_once(' ').map(|(_, line)| &line[..1]), Some("{"), "it has a hash");
    let edited = lines.replacen(middle, &middle.replacen("\"at\":1", "\"at\":2", 1), 1);
    assert_ne!(edited, lines);
    let edit = "UPDATE tenure.pages SET lines = $3 WHERE key = $1 AND n = $2";
    user.execute(edit, &[&key, &n, &edited]).await.expect("it is ours");
    let problems = verify(&*open(&url).await).await.expect("it reads").problems;
    assert!(problems.iter().any(|problem| problem.to_string().contains(key)), "{problems:?}");
    // The hash of the last line is what was written down, whatever the lines before it say.
    let edited = scan(&store, 0, PAGE_MAX).await;
    let last = |lines: &[Line]| lines.iter().rfind(|line| line.key.as_str() == key).cloned();
    assert_eq!(last(&edited), last(&all));
    user.execute(edit, &[&key, &n, &lines]).await.expect("it is ours");
    assert_eq!(scan(&store, 0, PAGE_MAX).await, all);
    verified(&[&store]).await;
}

#[tokio::test]
async fn what_was_written_with_all_hashes_is_read_as_before() {
    let url = database();
    let (a, all) = mingled(&url).await;
    let (b, user) = (open(&url).await, raw(&url).await);
    let pages = "UPDATE tenure.pages p SET lines = (SELECT string_agg( \
                     h.id || ' ' || encode(h.hash, 'hex') || ' ' || h.line, E'\n' ORDER BY h.id) \
                 FROM tenure.unfold(p.lines) AS h)";
    assert!(user.execute(pages, &[]).await.expect("it is ours") > 64);
    assert_eq!(scan(&a, 0, PAGE_MAX).await, all);
    take_and_release(&*a, "c1", 9_000).await;
    let entries = "UPDATE tenure.journal SET body = \
                   regexp_replace(body, '^(L \\S+) ', '\\1 ' || repeat('0', 64) || ' ', 'gn')";
    user.execute(entries, &[]).await.expect("it is ours");
    let shown = async |store: &Arc<Postgres>| {
        store.reads().show(&key("c1")).await.expect("it reads").expect("it is there").record
    };
    take_and_release(&*b, "c1", 9_001).await;
    assert_eq!(shown(&b).await, shown(&a).await);
    assert_eq!(scan(&b, LINES, PAGE_MAX).await.len(), 4);
    verified(&[&a, &b]).await;
}
