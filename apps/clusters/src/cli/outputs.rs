//! `tenure cluster outputs`

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use serde_json::Value;
use tenure_cli_kit::text::{field_list, print_line, sanitize};
use tenure_cli_kit::{CliContext, Done, Output, message, print_json};

use super::id::ClusterArg;
use super::{route, with_hint};
use crate::wire::{ClusterOutputsResponse, CredentialsResponse};

/// Mode of a file with credentials.
const MODE: u32 = 0o600;

/// Show how a running cluster is reached, or get its kubeconfig
///
/// The kubeconfig and the password give the rights of the administrator of the cluster. Reading
/// them needs the role operator, and is recorded in the audit.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster outputs aws:demo.dev.example.com
  tenure cluster outputs demo --kubeconfig kubeconfig && KUBECONFIG=kubeconfig oc get nodes
  tenure cluster outputs demo --kubeconfig - | kubectl --kubeconfig /dev/stdin get nodes
  tenure cluster outputs demo --show-password")]
pub(super) struct Outputs {
    /// Cluster
    #[arg(value_name = "CLUSTER")]
    cluster: ClusterArg,
    /// Write the kubeconfig to this file, which only you can read; - for stdout
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Show the password of the user kubeadmin
    #[arg(long)]
    show_password: bool,
}

impl Outputs {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let transport = cx.server.transport()?;
        let id = self.cluster.resolve(&transport).await?;
        let credentials = if self.show_password || self.kubeconfig.is_some() {
            let path = route(&id, "/credentials");
            let body = serde_json::json!({});
            let sent = transport.post(&path, None, &body, Duration::ZERO).await;
            Some(with_hint::<CredentialsResponse>(&id, sent)?)
        } else {
            None
        };
        if let (Some(file), Some(credentials)) = (&self.kubeconfig, &credentials) {
            if file.as_os_str() == "-" {
                // Nothing else: the output is a kubeconfig.
                std::io::stdout().write_all(credentials.kubeconfig.as_bytes())?;
                return Ok(ExitCode::SUCCESS);
            }
            write_private(file, &credentials.kubeconfig)
                .with_context(|| format!("cannot write {}", file.display()))?;
            message::say(&format!("wrote {}", file.display()));
        }
        let password = credentials.filter(|_| self.show_password).and_then(|c| c.password);
        let sent = transport.get(&route(&id, "/outputs")).await;
        let outputs: ClusterOutputsResponse = with_hint(&id, sent)?;
        print(&outputs, password, cx.output)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn print(
    outputs: &ClusterOutputsResponse,
    password: Option<String>,
    output: Output,
) -> anyhow::Result<()> {
    if output == Output::Json {
        let mut document = serde_json::to_value(outputs)?;
        if let (Value::Object(fields), Some(password)) = (&mut document, password) {
            fields.insert("password".to_owned(), password.into());
        }
        return print_json(&document);
    }
    print_line(&field_list(&[
        ("cluster", Some(sanitize(&outputs.id))),
        ("api", Some(sanitize(&outputs.outputs.api_url))),
        ("console", outputs.outputs.console_url.as_deref().map(sanitize)),
        ("infra id", outputs.infra_id.as_deref().map(sanitize)),
        ("snapshot", outputs.snapshot.as_deref().map(sanitize)),
        ("user", password.is_some().then(|| "kubeadmin".to_owned())),
        ("password", password.as_deref().map(sanitize)),
    ]))
}

/// Writes a file that only its owner can read, also if it exists with another mode.
fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file =
        File::options().write(true).create(true).truncate(false).mode(MODE).open(path)?;
    file.set_permissions(std::fs::Permissions::from_mode(MODE))?;
    file.set_len(0)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubeconfig_is_private_even_if_the_file_was_not() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, "something longer than the new text").expect("writable");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("ours");
        write_private(&path, "kind: Config\n").expect("writable");
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "kind: Config\n");
        let mode = path.metadata().expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, MODE);
    }
}
