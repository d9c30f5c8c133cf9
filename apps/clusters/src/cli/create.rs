//! `tenure cluster create`

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::text::parse_duration;
use tenure_cli_kit::{CliContext, Done};

use super::follow::{Submitted, accepted};
use crate::names::check_name;
use crate::request::CreateRequest;
use crate::wire::ClusterResponse;

/// Create a cluster
///
/// Prints a verdict and the id of the cluster: `started` for a new cluster, `attached` if the same
/// request is being worked on, `exists` if it runs with this configuration. Another configuration
/// is refused. What is not given comes from the profile.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster create demo --profile aws-dev
  tenure cluster create demo --profile aws-dev --version 4.19.1 --workers 5 --ttl 24h --follow
  tenure cluster create demo --profile aws-dev --tag team=web --owner web@example.com -o json

With --follow, phase, percentage and estimated time are shown until the cluster is READY. The exit
code is then 0, or 1 if the create failed, or 5 if it was cancelled, for example by a destroy.
Ctrl-C stops following, not the create, and exits with 130.")]
pub(super) struct Create {
    /// Name, the first label of the domain of the cluster
    #[arg(value_parser = parse_name)]
    name: String,
    /// Profile, which has defaults and bounds; see `tenure cluster profiles`
    #[arg(long)]
    profile: String,
    /// OpenShift version
    #[arg(long, value_name = "VERSION")]
    version: Option<String>,
    /// Region
    #[arg(long)]
    region: Option<String>,
    /// Base domain
    #[arg(long, value_name = "DOMAIN")]
    base_domain: Option<String>,
    /// Number of worker nodes
    #[arg(long, value_name = "N")]
    workers: Option<u32>,
    /// Time until the cluster is destroyed, or `none`, if the profile allows that
    #[arg(long, value_name = "DUR|none", value_parser = parse_ttl)]
    ttl: Option<Ttl>,
    /// Person or team that it belongs to [default: $USER]
    #[arg(long, value_name = "NAME")]
    owner: Option<String>,
    /// Tag of its resources in the cloud; can be repeated
    #[arg(long = "tag", value_name = "NAME=VALUE", value_parser = parse_tag)]
    tags: Vec<(String, String)>,
    /// Keep what a failed create leaves, to look at it; a destroy removes it
    #[arg(long)]
    preserve_on_failure: bool,
    /// Show the progress until the cluster is ready
    #[arg(long, short)]
    follow: bool,
}

/// A time to live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ttl {
    /// Until the cluster is destroyed.
    None,
    /// This long.
    After(Duration),
}

impl Ttl {
    /// Returns milliseconds; 0 for no time to live.
    pub(super) fn ms(self) -> u64 {
        match self {
            Self::None => 0,
            Self::After(time) => u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

/// Parses a time to live.
pub(super) fn parse_ttl(text: &str) -> Result<Ttl, String> {
    match text {
        "none" => Ok(Ttl::None),
        _ => match parse_duration(text)? {
            Duration::ZERO => Err("write `none` for a cluster without a time to live".to_owned()),
            time => Ok(Ttl::After(time)),
        },
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

fn parse_tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

impl Create {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        cx.server.one_tenant()?;
        let body = self.request()?;
        let transport = cx.server.transport()?;
        let key = Some(tenure_store::random::request_id().to_string());
        let sent = transport.post("/v1/clusters", key, &body, Duration::ZERO).await;
        let answer: ClusterResponse = accepted(sent)?;
        Submitted { answer, follow: self.follow }.finish(cx, &transport).await
    }

    fn request(&self) -> anyhow::Result<CreateRequest> {
        let user = || std::env::var("USER").ok().filter(|user| !user.is_empty());
        let owner = self.owner.clone().or_else(user).ok_or_else(|| {
            usage_error("the variable USER is not set; name the owner with --owner".to_owned())
        })?;
        let mut tags = BTreeMap::new();
        for (name, value) in &self.tags {
            if tags.insert(name.clone(), value.clone()).is_some() {
                return Err(usage_error(format!("--tag {name} is given twice")));
            }
        }
        Ok(CreateRequest {
            name: self.name.clone(),
            profile: self.profile.clone(),
            version: self.version.clone(),
            region: self.region.clone(),
            base_domain: self.base_domain.clone(),
            workers: self.workers,
            ttl_ms: self.ttl.map(Ttl::ms),
            owner,
            tags,
            preserve_on_failure: self.preserve_on_failure.then_some(true),
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        create: Create,
    }

    fn request(line: &str) -> Result<CreateRequest, String> {
        let words = ["create"].into_iter().chain(line.split(' '));
        let parsed = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        parsed.create.request().map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_fields_and_the_rest_is_left_to_the_profile() {
        let request = request("demo --profile p --owner ann --ttl none --tag a=b=c --workers 0")
            .expect("a valid line");
        let expected = CreateRequest {
            name: "demo".to_owned(),
            profile: "p".to_owned(),
            owner: "ann".to_owned(),
            ttl_ms: Some(0),
            workers: Some(0),
            tags: [("a".to_owned(), "b=c".to_owned())].into(),
            ..CreateRequest::default()
        };
        assert_eq!(request, expected);
    }

    #[test]
    fn invalid_names_times_and_tags_are_refused() {
        for (line, part) in [
            ("Demo --profile p --owner ann", "'D'"),
            ("demo --profile p --owner ann --ttl 0s", "none"),
            ("demo --profile p --owner ann --ttl soon", "not a duration"),
            ("demo --profile p --owner ann --tag a", "NAME=VALUE"),
            ("demo --profile p --owner ann --tag a=1 --tag a=2", "twice"),
        ] {
            let why = request(line).expect_err(line);
            assert!(why.contains(part), "{line}: {why}");
        }
    }
}
