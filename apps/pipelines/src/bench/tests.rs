//! Comparisons, and short runs of the whole benchmark.

use clap::Parser as _;

use super::*;
use tenure_bench::load::Sample;

#[derive(clap::Parser)]
struct TestCli {
    #[command(flatten)]
    pipelines: Pipelines,
}

fn options(args: &[&str]) -> Pipelines {
    TestCli::parse_from([&["bench", "--seconds", "100ms"], args].concat()).pipelines
}

fn measured(pairs: u64, p50_us: f64) -> Measured {
    let elapsed = Duration::from_secs(2);
    let sample = Sample { pairs, elapsed, p50_us, p99_us: 9_999.0 };
    Measured { sample, triggers: pairs + 10, runs: 1 }
}

#[test]
fn rates_are_compared_with_the_baseline_and_a_flush() {
    let (tenure, baseline) = (measured(10_000, 0.0), measured(40_000, 0.0));
    assert_eq!(compare_rates(&tenure, &baseline, None), "0.25× of in-memory lock");
    let flush = Some(Spread { p50_us: 1_000.0, p99_us: 0.0 });
    assert_eq!(compare_rates(&tenure, &baseline, flush), "0.25× of in-memory lock, 5.0 per flush");
}

#[test]
fn times_are_compared_with_the_baseline_and_a_flush() {
    let (tenure, baseline) = (measured(1, 1_500.0), measured(1, 100.0));
    assert_eq!(compare_times(&tenure, &baseline, None), "15.0× as long as in-memory lock");
    let flush = Some(Spread { p50_us: 1_000.0, p99_us: 0.0 });
    assert_eq!(
        compare_times(&tenure, &baseline, flush),
        "15.0× as long as in-memory lock, 1.5 flushes"
    );
}

#[test]
fn all_triggers_are_counted_including_unmeasured_ones() {
    let mut report = Report::default();
    report.push("x", 16, &measured(1_000, 1.0), String::new());
    report.push("x", 64, &measured(2_000, 1.0), String::new());
    let counts = report.counts();
    assert!(counts.starts_with("triggers: 3,020, runs: 2, "), "{counts}");
    assert!(counts.ends_with("overlaps: 0"), "{counts}");
}

#[test]
fn each_measurement_of_duplicates_has_its_own_pipeline() {
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
async fn zero_and_too_many_concurrent_pipelines_are_rejected() {
    for at_once in ["0", "4097"] {
        let error = options(&["--at-once", at_once]).measure(Path::new("/nowhere")).await;
        let error = error.err().unwrap().to_string();
        assert!(error.contains("--at-once"), "{error}");
    }
}

/// Runs all measurements except the limits of the machine.
async fn measure_all(store: &[&str]) -> Report {
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
        let [baseline, tenure] = pair else { panic!("a pair") };
        assert!(baseline.what.starts_with(BASELINE) && tenure.what.starts_with(name), "{pair:?}");
        assert_eq!(baseline.in_flight, tenure.in_flight);
        assert!(baseline.ratio.is_empty() && tenure.ratio.contains(BASELINE), "{pair:?}");
        // A caller that was stalled from the warm-up to the end has measured no start.
        let measured = |row: &Row| row.p50_us > 0.0 || row.what.ends_with("trigger to start");
        assert!(pair.iter().all(|row| measured(row) && row.p50_us <= row.p99_us), "{pair:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_store_is_measured() {
    check(&measure_all(&["--store", "memory:"]).await, "tenure memory: ");
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_store_is_measured() {
    check(&measure_all(&[]).await, "tenure embedded, durable: ");
}
