//! The verbs of the command line, one file each.

mod audit;
#[cfg(test)]
mod canned;
mod completions;
mod config;
mod dead;
mod doctor;
mod document;
mod exec;
mod follow;
mod job;
mod key;
mod listing;
mod lock;
mod migrate;
mod pieces;
mod pipeline;
mod reload;
mod resource;
mod serve;
mod verify;
mod why;
mod worker;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};

use crate::context::Reach;
use crate::{bench, exit, log};

pub(crate) use serve::{close, open_store};

/// One operation at a time on a resource, even when workers crash, freeze, lose the network or are
/// started twice.
#[derive(Parser)]
#[command(
    name = "tenure",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  tenure serve                                   start a durable server for locks and jobs
  tenure exec cluster/c1 -- ./install.sh         run a command under a lock
  tenure lock ls                                 see who holds what
  tenure job submit database/orders create -f    ask for an operation and follow it
  tenure pipeline run billing --follow           trigger a pipeline and see its steps
  tenure why database/orders                     see what it waits for
  tenure verify                                  prove that no lock ever had two holders
  tenure doctor                                  see what this deployment is worth

Exit codes: 0 ok, 1 failed, 2 usage, 3 held by another, 4 not found, 5 conflict or refused,
6 lost, 69 store or server unavailable. `tenure exec` has its own; see its help."
)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
    #[command(flatten)]
    reach: Reach,
    /// How to print data
    #[arg(long, short, value_enum, default_value = "table", global = true)]
    output: Output,
}

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Subcommand)]
enum Verb {
    /// Serve the API on a durable store
    Serve(serve::Serve),
    Worker(worker::WorkerVerb),
    /// Run a command under a lock
    Exec(exec::Exec),
    /// Look at locks and handle them by hand
    #[command(subcommand)]
    Lock(lock::Lock),
    /// Submit jobs, look at them, cancel and retry them
    #[command(subcommand)]
    Job(job::Job),
    /// Trigger pipelines, look at their runs and cancel them
    #[command(subcommand)]
    Pipeline(pipeline::Pipeline),
    /// Look at resources, pause and change them
    #[command(subcommand)]
    Resource(resource::ResourceVerb),
    /// Jobs that used up their attempts: look at them, try again or throw away
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Make keys, list and revoke them
    #[command(subcommand)]
    Key(key::Key),
    /// Show what was done on a server, and what was refused
    Audit(audit::AuditVerb),
    /// Say what a job or a resource waits for
    Why(why::Why),
    /// Prove from the history that every lock had at most one holder at a time
    Verify(verify::Verify),
    /// Probe the deployment and say what it voids
    Doctor(doctor::Doctor),
    /// Bring the tables of a database up to date
    Migrate(migrate::Migrate),
    /// Kinds and settings in tenure.toml
    #[command(subcommand)]
    Config(config::ConfigVerb),
    /// Measure this machine, the stores and their peers
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Print a completion script for a shell
    Completions(completions::Completions),
}

/// Runs the command line of this process.
pub(crate) fn run() -> ExitCode {
    let cli = Cli::parse();
    let log = match &cli.command {
        Verb::Serve(serve::Serve { log, .. }) | Verb::Worker(worker::WorkerVerb { log, .. }) => {
            log::start(Some(log.log_format))
        }
        _ => log::start(None),
    };
    // Dropped last: it tells of what happened until then.
    let _log = match log {
        Ok(log) => log,
        Err(error) => return exit::report(&error),
    };
    let result = match &cli.command {
        Verb::Serve(serve) => on_runtime(serve.run(&cli.reach)),
        Verb::Worker(worker) => on_runtime(worker.run(&cli.reach)),
        Verb::Exec(exec) => return on_runtime_code(exec.run(&cli.reach)),
        Verb::Lock(lock) => on_runtime(lock.run(&cli.reach, cli.output)),
        Verb::Job(job) => on_runtime(job.run(&cli.reach, cli.output)),
        Verb::Pipeline(pipeline) => on_runtime(pipeline.run(&cli.reach, cli.output)),
        Verb::Resource(resource) => on_runtime(resource.run(&cli.reach, cli.output)),
        Verb::Dead(dead) => on_runtime(dead.run(&cli.reach, cli.output)),
        Verb::Key(key) => on_runtime(key.run(&cli.reach, cli.output)),
        Verb::Audit(audit) => on_runtime(audit.run(&cli.reach, cli.output)),
        Verb::Why(why) => on_runtime(why.run(&cli.reach, cli.output)),
        Verb::Verify(verify) => on_runtime(verify.run(&cli.reach, cli.output)),
        Verb::Doctor(doctor) => on_runtime(doctor.run(&cli.reach, cli.output)),
        Verb::Migrate(migrate) => on_runtime(migrate.run(&cli.reach, cli.output)),
        Verb::Config(config) => config.run(cli.output),
        Verb::Bench(bench) => on_runtime(bench.run(&cli.reach, cli.output)),
        Verb::Completions(completions) => completions.run(),
    };
    result.unwrap_or_else(|error| exit::report(&error))
}

/// What a verb gives: usually success, or a code of its own.
type Done = anyhow::Result<ExitCode>;

fn on_runtime(work: impl Future<Output = Done>) -> Done {
    let runtime = tokio::runtime::Runtime::new()?;
    let done = runtime.block_on(work);
    // Whatever a blocking thread still does is not waited for.
    runtime.shutdown_background();
    done
}

fn on_runtime_code(work: impl Future<Output = u8>) -> ExitCode {
    match tokio::runtime::Runtime::new() {
        Ok(runtime) => {
            let code = runtime.block_on(work);
            runtime.shutdown_background();
            ExitCode::from(code)
        }
        Err(error) => {
            anstream::eprintln!("tenure: cannot start a runtime: {error}");
            ExitCode::from(exit::under_exec::FAILED)
        }
    }
}

/// Prints data for programs.
pub(crate) fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    crate::text::out(&serde_json::to_string_pretty(value)?)
}
