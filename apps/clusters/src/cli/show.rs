//! `tenure cluster show`

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tenure_cli_kit::text::{age, field_list, format_duration, print_line, sanitize};
use tenure_cli_kit::{CliContext, Done, Output, color, exit, hint, print_json};
use tokio::signal::unix::{SignalKind, signal};

use super::follow::{describe_end, exit_code, follow};
use super::id::ClusterArg;
use super::ls::{expiry, time_left};
use super::{get_cluster, get_job};
use crate::wire::{ClusterInfo, ClusterOperationInfo};

/// Show a cluster: its configuration, what is being done with it, its last failure
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster show aws:demo.dev.example.com
  tenure cluster show -f demo                    follow what is being done
  tenure cluster show demo -o json")]
pub(super) struct Show {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
    /// Show the progress until the operation ends; exits like `create --follow`
    #[arg(long, short)]
    follow: bool,
}

impl Show {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        let mut cluster = get_cluster(&transport, &id).await?;
        let mut code = ExitCode::SUCCESS;
        if let Some(operation) = cluster.operation.as_ref().filter(|_| self.follow) {
            let interrupt = signal(SignalKind::interrupt())?;
            let job = get_job(&transport, operation.job, Duration::ZERO).await?;
            match follow(&transport, &id, &job, interrupt).await? {
                Some(ended) => {
                    hint::print(&describe_end(&ended.job, &ended.cluster));
                    (code, cluster) = (exit_code(ended.job.state), ended.cluster);
                }
                None => code = ExitCode::from(exit::INTERRUPTED),
            }
        }
        match cx.output {
            Output::Json => print_json(&cluster)?,
            Output::Table => print_line(&facts_of(&cluster))?,
        }
        Ok(code)
    }
}

fn facts_of(cluster: &ClusterInfo) -> String {
    let at = |at: &String| format!("{at} ({} ago)", age(at));
    let tags = cluster.tags.iter().map(|(name, value)| sanitize(&format!("{name}={value}")));
    let tags: Vec<String> = tags.collect();
    let expires = expiry(cluster).map(|at| match &*time_left(at) {
        "" => format!("{at} (now)"),
        left => format!("{at} (in {left})"),
    });
    let error = cluster.last_error.as_ref().map(|error| {
        let class = error.class.as_ref().map(|class| format!(" ({class})")).unwrap_or_default();
        let (operation, attempt) = (&error.operation, error.attempt);
        let (code, message) = (&error.code, &error.message);
        sanitize(&format!("{operation}, attempt {attempt}: {code}{class}: {message}"))
    });
    let outputs = cluster.outputs.as_ref();
    let yes = |is: bool, text: &str| is.then(|| text.to_owned());
    field_list(&[
        ("cluster", Some(sanitize(&cluster.id))),
        ("state", Some(format!("{} for {}", color::state(&cluster.state), age(&cluster.since)))),
        ("paused", yes(cluster.paused, "no job starts; see `tenure why`")),
        ("operation", cluster.operation.as_ref().map(describe_operation)),
        ("last error", error),
        ("profile", Some(sanitize(&cluster.profile))),
        ("version", Some(sanitize(&cluster.version))),
        ("region", Some(sanitize(&cluster.region)).filter(|region| !region.is_empty())),
        ("workers", Some(cluster.workers.to_string())),
        ("owner", Some(sanitize(&cluster.owner))),
        ("tags", (!tags.is_empty()).then(|| tags.join(", "))),
        ("created", cluster.created_at.as_ref().map(at)),
        ("expires", expires),
        ("kept", yes(cluster.preserved, "what a failed create has left; destroy it")),
        ("infra id", cluster.infra_id.as_deref().map(sanitize)),
        ("cluster id", cluster.cluster_id.as_deref().map(sanitize)),
        ("api", outputs.map(|outputs| sanitize(&outputs.api_url))),
        ("console", outputs.and_then(|outputs| outputs.console_url.as_deref()).map(sanitize)),
    ])
}

/// `CREATE running, attempt 2 on vm/12, 40 %: API up, about 12m left`
fn describe_operation(operation: &ClusterOperationInfo) -> String {
    let mut text = format!("{} {}", operation.operation, operation.state);
    if operation.attempt > 0 {
        text += &format!(", attempt {}", operation.attempt);
    }
    if let Some(worker) = &operation.worker {
        text += &format!(" on {worker}");
    }
    if let Some(progress) = &operation.progress {
        text += &format!(", {} %: {}", progress.percent, progress.message);
    }
    if let Some(remaining_ms) = operation.remaining_ms {
        text += &format!(", about {} left", format_duration(remaining_ms));
    }
    if let Some(at) = &operation.next_attempt_at {
        text += &format!(", next attempt at {at}");
    }
    if let Some(error) = operation.error.as_ref().filter(|_| operation.progress.is_none()) {
        text += &format!(", after {}: {}", error.code, error.message);
    }
    if operation.waiting > 0 {
        text += &format!("; {} more wait", operation.waiting);
    }
    text += &format!("; job {}", operation.job);
    sanitize(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::display::tests::example_cluster;
    use crate::wire::OutputsInfo;

    #[test]
    fn only_what_is_known_is_shown() {
        let mut cluster = example_cluster();
        let facts = facts_of(&cluster);
        assert!(facts.contains("4.19.1"), "{facts}");
        for absent in ["console", "last error", "expires", "paused", "tags"] {
            assert!(!facts.contains(absent), "{absent}: {facts}");
        }
        let (api_url, console_url) = ("https://api.a.b.c:6443".to_owned(), None);
        cluster.outputs = Some(OutputsInfo { api_url, console_url });
        assert!(facts_of(&cluster).contains("https://api.a.b.c:6443"));
    }
}
