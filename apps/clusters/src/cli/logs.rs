//! `tenure cluster logs`

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure::http::HttpTransport;
use tenure::job::LogReader;
use tenure_cli_kit::log_text::without_data_lines;
use tenure_cli_kit::text::{query, sanitize_line};
use tenure_cli_kit::{CliContext, Done, Output, hint};
use tenure_core::JobId;
use tenure_wire::{LogChunkInfo, LogResponse};

use super::id::ClusterArg;
use super::{get_cluster, get_job, route, with_hint};

/// Maximum wait of one request for more of a log.
const POLL_WAIT: Duration = Duration::from_secs(20);

/// Print the log of the current operation of a cluster, or of its last one
///
/// It has the output of the installer without secrets, and what the worker did around it. With `-o
/// json`, each chunk is one line of JSON. `tenure job logs` prints that of an earlier operation.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster logs aws:demo.dev.example.com
  tenure cluster logs -f demo")]
pub(super) struct Logs {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
    /// Follow the log until the operation ends
    #[arg(long, short)]
    follow: bool,
}

impl Logs {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        let current = get_cluster(&transport, &id).await?.operation.map(|operation| operation.job);
        let mut printer = Printer { output: cx.output, shown_attempt: 0 };
        match current.filter(|_| self.follow) {
            Some(job) => follow(&transport, job, &mut printer).await?,
            None => print_all(&transport, &id, &mut printer).await?,
        }
        if printer.shown_attempt == 0 {
            hint::print(&format!(
                "no output yet; `tenure cluster show {id}` says what the operation waits for"
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Prints the log of a job until it ends.
async fn follow(
    transport: &HttpTransport,
    job: JobId,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut reader = LogReader::new(job, None);
    loop {
        // The job before its log, which is complete once the job has ended.
        let finished = get_job(transport, job, Duration::ZERO).await?.state.is_finished();
        let wait = if finished { Duration::ZERO } else { POLL_WAIT };
        let chunks = reader.next(transport, wait).await?;
        chunks.iter().try_for_each(|chunk| printer.print(chunk))?;
        if finished && chunks.is_empty() {
            return Ok(());
        }
    }
}

/// Prints the log of the current or last job of a cluster, as it is now.
async fn print_all(
    transport: &HttpTransport,
    id: &str,
    printer: &mut Printer,
) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        let path = query(&route(id, "/logs"), &[("after", after)]);
        let page: LogResponse = with_hint(id, transport.get(&path).await)?;
        page.items.iter().try_for_each(|chunk| printer.print(chunk))?;
        if page.items.is_empty() {
            return Ok(());
        }
        after = Some(page.next.to_string());
    }
}

struct Printer {
    output: Output,
    /// The attempt whose heading was printed last.
    shown_attempt: u32,
}

impl Printer {
    /// Prints a chunk, with a heading if it is the first one of its attempt.
    fn print(&mut self, chunk: &LogChunkInfo) -> anyhow::Result<()> {
        let mut stdout = std::io::stdout().lock();
        if self.output == Output::Json {
            self.shown_attempt = chunk.attempt;
            writeln!(stdout, "{}", serde_json::to_string(chunk)?)?;
            return Ok(stdout.flush()?);
        }
        if self.shown_attempt != chunk.attempt {
            anstream::eprintln!("attempt {}:", chunk.attempt);
            self.shown_attempt = chunk.attempt;
        }
        for line in without_data_lines(&chunk.text).lines() {
            writeln!(stdout, "{}", sanitize_line(line))?;
        }
        Ok(stdout.flush()?)
    }
}
