//! The verbs of the command line, one file each.

mod audit;
mod complete;
mod completions;
mod config;
mod dead;
mod demo;
mod doctor;
mod elect;
mod exec;
mod job;
mod key;
mod lock;
mod migrate;
mod reload;
mod resource;
mod serve;
mod status;
mod top;
mod under_lock;
mod verify;
mod why;
mod worker;
mod worker_ls;
mod worker_pool;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use tenure_app::Apps;
use tenure_cli_kit::color::ColorMode;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::hint::{self, Scope};
use tenure_cli_kit::{CliContext, Done, ListedValues, Output, ServerArgs, exit};

use crate::{apps, log};

/// Lock and job server: one operation at a time on a resource, even if workers crash, freeze, lose
/// the network or are started twice.
#[derive(Parser)]
#[command(
    name = "tenure",
    version,
    max_term_width = 100,
    after_help = "\
Examples:
  tenure demo                                    list the demos: an app at work, no setup
  tenure serve                                   start a durable server for locks and jobs
  tenure exec cluster/c1 -- ./install.sh         run a command under a lock
  tenure elect service/api -- ./serve.sh         run a command on one of several machines
  tenure status                                  show what runs and what needs attention
  tenure lock ls                                 list held locks
  tenure job submit database/orders create -f    submit a job and follow it
  tenure why database/orders                     explain what a resource is waiting for
  tenure verify                                  prove that no lock ever had two holders
  tenure doctor                                  list the guarantees this deployment weakens

Exit codes: 0 ok, 1 failed, 2 usage, 3 held by another, 4 not found, 5 conflict or refused,
6 lost, 69 store or server unavailable. `tenure exec` and `tenure elect` have their own; see their
help."
)]
struct Cli {
    #[command(subcommand)]
    command: Verb,
    #[command(flatten)]
    shared: Shared,
}

/// The options that all verbs share.
#[derive(Args)]
struct Shared {
    #[command(flatten)]
    server: ServerArgs,
    /// Output format
    #[arg(long, short, value_enum, default_value = "table", global = true)]
    output: Output,
    /// When to use colours
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN", global = true)]
    color: ColorMode,
}

#[derive(Subcommand)]
enum Verb {
    // Verbs without a comment here are documented by their arguments: one here would hide it.
    Serve(serve::Serve),
    Worker(worker::WorkerVerb),
    Exec(exec::Exec),
    Elect(elect::Elect),
    /// Show locks, acquire and release them manually
    #[command(subcommand)]
    Lock(lock::Lock),
    /// Submit, show, cancel and retry jobs
    #[command(subcommand)]
    Job(job::Job),
    /// Show, pause, change and delete resources
    #[command(subcommand)]
    Resource(resource::ResourceVerb),
    /// Manage dead letters: jobs that have used up their attempts
    #[command(subcommand)]
    Dead(dead::Dead),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Key(key::Key),
    Status(status::StatusVerb),
    Top(top::Top),
    Audit(audit::AuditVerb),
    Why(why::Why),
    Verify(verify::Verify),
    Doctor(doctor::Doctor),
    Migrate(migrate::Migrate),
    /// Check tenure.toml
    #[command(subcommand)]
    Config(config::ConfigVerb),
    Demo(demo::DemoVerb),
    Completions(completions::Completions),
}

/// Verbs added at run time.
struct AddedVerbs {
    /// `tenure VERB`, of apps.
    apps: Vec<Box<dyn tenure_cli_kit::Verb>>,
    /// `tenure bench VERB`.
    benches: Vec<Box<dyn tenure_cli_kit::Verb>>,
}

impl AddedVerbs {
    fn new(apps: &Apps) -> Self {
        let benches = tenure_bench::verbs().into_iter();
        Self {
            apps: apps.iter().filter_map(|app| app.cli()).collect(),
            benches: benches.chain(apps.iter().flat_map(|app| app.benches())).collect(),
        }
    }

    /// Adds the verbs to the command line.
    fn command(&self) -> clap::Command {
        let bench = clap::Command::new("bench")
            .about("Benchmark this machine, the stores and comparable systems")
            .subcommand_required(true)
            .arg_required_else_help(true)
            .subcommands(self.benches.iter().map(|verb| verb.command()));
        let cli = Cli::command();
        let help = cli.get_after_help().map(ToString::to_string).unwrap_or_default();
        let examples = self.apps.iter().filter_map(|verb| verb.example());
        let examples = examples.map(|(line, meaning)| format!("  {line:<47}{meaning}\n"));
        let help =
            help.replacen("  tenure why ", &(examples.collect::<String>() + "  tenure why "), 1);
        cli.subcommands(self.apps.iter().map(|verb| verb.command()))
            .subcommand(bench)
            .after_help(help)
    }

    /// Returns the arguments of the verbs of apps whose values the server lists.
    fn listed_values(&self) -> Vec<(String, ListedValues)> {
        let mut found = Vec::new();
        for verb in &self.apps {
            let name = verb.command().get_name().to_owned();
            found.extend(verb.listed_values().iter().map(|values| (name.clone(), *values)));
        }
        found
    }

    /// Returns the verb that was matched, with its arguments.
    fn find<'a>(
        &self,
        matches: &'a clap::ArgMatches,
    ) -> Option<(&dyn tenure_cli_kit::Verb, &'a clap::ArgMatches)> {
        let (verbs, (name, matches)) = match matches.subcommand()? {
            ("bench", matches) => (&self.benches, matches.subcommand()?),
            other => (&self.apps, other),
        };
        let verb = verbs.iter().find(|verb| verb.command().get_name() == name)?;
        Some((&**verb, matches))
    }
}

/// Returns the whole command line, with the verbs of the installed apps.
fn command() -> clap::Command {
    AddedVerbs::new(&apps::installed()).command()
}

/// Returns whether the command line has this verb.
fn is_verb(name: &str) -> bool {
    command().find_subcommand(name).is_some()
}

/// Returns what a command in a message acts on.
fn hint_scope(words: &str) -> Scope {
    let mut words = words.split(' ');
    match words.next().unwrap_or_default() {
        "serve" => Scope::Data,
        "bench" | "completions" | "config" | "demo" | "migrate" => Scope::Nothing,
        // Of files of an app.
        verb if is_verb(verb) && words.next() != Some("check") => Scope::Server,
        _ => Scope::Nothing,
    }
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    let apps = apps::installed();
    let added = AddedVerbs::new(&apps);
    if let Some(words) = complete::requested(std::env::args_os()) {
        return with_log(None, Output::Table, || {
            on_runtime(complete::run(added.command(), &added.listed_values(), words))
        });
    }
    let matches = match added.command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() && is_json_requested(std::env::args_os()) => {
            let error = usage_error(error.render().to_string().trim_end().to_owned());
            return exit::report(&error, Output::Json);
        }
        Err(error) => error.exit(),
    };
    if let Some((verb, verb_matches)) = added.find(&matches) {
        let Shared { server, output, color } = parse_matches(&matches);
        color.apply();
        hint::remember(&server, hint_scope);
        let cx = CliContext { server, output };
        return with_log(None, output, || on_runtime(verb.run(verb_matches, &cx)));
    }
    let Cli { command, shared: Shared { server, output, color } } = parse_matches(&matches);
    color.apply();
    hint::remember(&server, hint_scope);
    let log = match &command {
        Verb::Serve(serve) => Some(serve.log.log_format),
        Verb::Worker(worker) => worker.log_format(),
        _ => None,
    };
    with_log(log, output, || match &command {
        Verb::Serve(serve) => on_runtime(serve.run(&apps, &server)),
        Verb::Worker(worker) => on_runtime(worker.run(&apps, &server, output)),
        Verb::Exec(exec) => Ok(on_runtime_code(exec.run(&server, output))),
        Verb::Elect(elect) if elect.is_query() => on_runtime(elect.show(&server, output)),
        Verb::Elect(elect) => Ok(on_runtime_code(elect.run(&server, output))),
        Verb::Lock(lock) => on_runtime(lock.run(&server, output)),
        Verb::Job(job) => on_runtime(job.run(&server, output)),
        Verb::Resource(resource) => on_runtime(resource.run(&server, output)),
        Verb::Dead(dead) => on_runtime(dead.run(&server, output)),
        Verb::Key(key) => on_runtime(key.run(&server, output)),
        Verb::Status(status) => on_runtime(status.run(&server, output)),
        Verb::Top(top) => on_runtime(top.run(&server, output)),
        Verb::Audit(audit) => on_runtime(audit.run(&server, output)),
        Verb::Why(why) => on_runtime(why.run(&server, output)),
        Verb::Verify(verify) => on_runtime(verify.run(&server, output)),
        Verb::Doctor(doctor) => on_runtime(doctor.run(&server, output)),
        Verb::Migrate(migrate) => on_runtime(migrate.run(&server, output)),
        Verb::Demo(demo) => on_runtime(demo.run(&apps, output)),
        Verb::Config(config) => config.run(&apps, output),
        Verb::Completions(completions) => completions.run(),
    })
}

/// Parses matches of a derived command. Errors are usage errors.
fn parse_matches<T: clap::FromArgMatches>(matches: &clap::ArgMatches) -> T {
    T::from_arg_matches(matches).unwrap_or_else(|error| error.exit())
}

/// Starts the log, runs a verb and reports its error. The log is flushed last.
fn with_log(
    daemon: Option<log::LogFormat>,
    output: Output,
    run: impl FnOnce() -> Done,
) -> ExitCode {
    let _log = match log::start(daemon) {
        Ok(log) => log,
        Err(error) => return exit::report(&error, output),
    };
    run().unwrap_or_else(|error| exit::report(&error, output))
}

/// Returns whether the arguments, which cannot be parsed, select JSON as the output format.
fn is_json_requested(args: impl Iterator<Item = OsString>) -> bool {
    // What follows `--` is a command of `tenure exec` or `tenure elect`.
    let args = args.map(|arg| arg.to_string_lossy().into_owned());
    let args: Vec<_> = args.take_while(|arg| arg != "--").collect();
    let has_value = |pair: &[String]| matches!(&*pair[0], "-o" | "--output") && pair[1] == "json";
    args.windows(2).any(has_value)
        || args.iter().any(|arg| matches!(&**arg, "-ojson" | "-o=json" | "--output=json"))
}

fn on_runtime(work: impl Future<Output = Done>) -> Done {
    let runtime = tokio::runtime::Runtime::new()?;
    let done = runtime.block_on(work);
    // Does not wait for blocking threads.
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
