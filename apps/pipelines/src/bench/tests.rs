//! What is computed, and the whole of it, shortly.

use clap::Parser as _;

use super::*;
use tenure_bench::load::Sample;

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    pipelines: Pipelines,
}

fn options(args: &[&str]) -> Pipelines {
    Line::parse_from([&["bench", "--seconds", "100ms"], args].concat()).pipelines
}

fn measured(pairs: u64, p50_us: f64) -> Measured {
    let elapsed = Duration::from_secs(2);
    let sample = Sample { pairs, elapsed, p50_us, p99_us: 9_999.0 };
    Measured { sample, triggers: pairs + 10, runs: 1 }
}

#[test]
fn rates_are_compared_with_those_of_the_peer_and_with_a_flush() {
    let (ours, peer) = (measured(10_000, 0.0), measured(40_000, 0.0));
    assert_eq!(rates(&ours, &peer, None), "0.25× of a lock in memory");
    let flush = Some(Spread { p50_us: 1_000.0, p99_us: 0.0 });
    assert_eq!(rates(&ours, &peer, flush), "0.25× of a lock in memory, 5.0 per flush");
}

#[test]
fn times_are_compared_with_those_of_the_peer_and_with_a_flush() {
    let (ours, peer) = (measured(1, 1_500.0), measured(1, 100.0));
    assert_eq!(times(&ours, &peer, None), "15.0× as long as a lock in memory");
    let flush = Some(Spread { p50_us: 1_000.0, p99_us: 0.0 });
    assert_eq!(times(&ours, &peer, flush), "15.0× as long as a lock in memory, 1.5 flushes");
}

#[test]
fn all_triggers_count_also_those_that_were_not_measured() {
    let mut report = Report::default();
    report.push("x", 16, &measured(1_000, 1.0), String::new());
    report.push("x", 64, &measured(2_000, 1.0), String::new());
    let counts = report.counts();
    assert!(counts.starts_with("triggers: 3,020, runs: 2, "), "{counts}");
    assert!(counts.ends_with("overlaps: 0"), "{counts}");
}

#[test]
fn every_figure_of_duplicates_has_a_pipeline_of_its_own() {
    let names = Names::new(3, 2);
    assert_eq!(names.all().len(), 5);
    assert_ne!(names.tenant, Names::new(3, 2).tenant);
    let scratch = Scratch::create(&std::env::temp_dir()).unwrap();
    let loaded = names.declare(scratch.path(), 2).unwrap();
    let catalog = loaded.apps.get::<Catalog>().unwrap();
    assert_eq!(catalog.len(), 5);
    assert!(catalog.get(&names.tenant, "duplicates-2").is_some());
}

#[tokio::test]
async fn nothing_at_once_and_too_much_at_once_are_refused() {
    for at_once in ["0", "4097"] {
        let error = options(&["--at-once", at_once]).measure(Path::new("/nowhere")).await;
        let error = error.err().unwrap().to_string();
        assert!(error.contains("--at-once"), "{error}");
    }
}

/// Everything but the floor, on a store.
async fn all(store: &[&str]) -> Report {
    let scratch = Scratch::create(&std::env::temp_dir()).unwrap();
    let args = ["--only", "duplicates,starts", "--in-flight", "1,8", "--at-once", "1,4"];
    options(&[&args, store].concat()).measure(scratch.path()).await.unwrap()
}

fn check(report: &Report, name: &str) {
    assert_eq!(report.overlaps, 0);
    assert!(report.triggers > report.runs && report.runs >= 8, "{}", report.counts());
    let rows = &report.rows;
    assert_eq!(rows.len(), 8);
    for pair in rows.chunks_exact(2) {
        let [peer, ours] = pair else { panic!("a peer and us") };
        assert!(peer.what.starts_with(PEER) && ours.what.starts_with(name), "{pair:?}");
        assert_eq!(peer.in_flight, ours.in_flight);
        assert!(peer.ratio.is_empty() && ours.ratio.contains(PEER), "{pair:?}");
        // Whoever was stalled from a start in the warm-up to the end has measured no start.
        let measured = |row: &Row| row.p50_us > 0.0 || row.what.ends_with("trigger to start");
        assert!(pair.iter().all(|row| measured(row) && row.p50_us <= row.p99_us), "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_in_memory_is_measured() {
    check(&all(&["--store", "memory:"]).await, "tenure memory: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_store_is_measured() {
    check(&all(&[]).await, "tenure embedded, durable: ");
}
