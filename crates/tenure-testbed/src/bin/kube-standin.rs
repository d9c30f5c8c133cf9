//! `kube-standin`: the imitated Kubernetes API as a process, for tests and demos in any language.
//!
//! Writes `kubeconfig` into its directory and prints its URL. Must never outlive its directory:
//! removing that ends the process, and so does the end of the time limit.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tenure_testbed::KubeApi;

const USAGE: &str = "usage: kube-standin --dir DIR --workers N [--auto] [--stuck N]

Serves an imitated OpenShift API with N ready workers until DIR is removed, at most an hour.
  --auto      machines follow at once; otherwise with POST URL/standin/advance
  --stuck N   the next N nodes stay NotReady until POST URL/standin/unstick";

/// Longest run of a process that nobody ends.
const RUN_MAX: Duration = Duration::from_secs(3_600);
/// Interval between looks at the directory.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

struct Arguments {
    dir: PathBuf,
    workers: u32,
    auto: bool,
    stuck: usize,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error:#}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Arguments> {
    let (mut dir, mut workers, mut auto, mut stuck) = (None, None, false, 0);
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--dir" => dir = Some(PathBuf::from(value()?)),
            "--workers" => workers = Some(value()?.parse().context("--workers needs a number")?),
            "--stuck" => stuck = value()?.parse().context("--stuck needs a number")?,
            "--auto" => auto = true,
            _ => bail!("unknown argument {word}"),
        }
    }
    let dir = dir.context("--dir is missing")?;
    Ok(Arguments { dir, workers: workers.context("--workers is missing")?, auto, stuck })
}

fn run(arguments: &Arguments) -> Result<()> {
    let api = KubeApi::start(arguments.workers)?;
    if arguments.auto {
        api.advance_by_itself();
    }
    api.stick_nodes(arguments.stuck);
    let file = arguments.dir.join("kubeconfig");
    fs::write(&file, api.kubeconfig()).with_context(|| format!("write {}", file.display()))?;
    println!("{}", api.url());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.context("start a runtime")?.block_on(async {
        let removed = async {
            let mut looks = tokio::time::interval(LOOK_INTERVAL);
            while file.exists() {
                looks.tick().await;
            }
        };
        tokio::time::timeout(RUN_MAX, removed).await.ok();
    });
    Ok(())
}
