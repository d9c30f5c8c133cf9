//! `tenure cluster profiles`

use std::process::ExitCode;

use clap::Args;
use tenure_cli_kit::text::{cell, format_duration, print_line, sanitize, table};
use tenure_cli_kit::{CliContext, Done, Output, hint, print_json};
use tenure_wire::ListResponse;

use crate::wire::{ProfileInfo, TtlBounds, WorkerBounds};

/// List the profiles, with what they allow
///
/// The first version, region and base domain of a profile is its default. `-o json` has everything.
#[derive(Args)]
#[command(after_help = "\
Examples:
  tenure cluster profiles
  tenure cluster profiles -o json | jq '.items[].versions'")]
pub(super) struct ProfilesVerb {}

impl ProfilesVerb {
    pub(super) async fn run(&self, cx: &CliContext) -> Done {
        let list: ListResponse<ProfileInfo> = cx.server.transport()?.get("/v1/profiles").await?;
        match cx.output {
            Output::Json => print_json(&list)?,
            Output::Table if list.items.is_empty() => hint::print(
                "there are no profiles; add PROFILE.toml to `profiles` in [clusters] of the \
                 server's tenure.toml, and check them with: tenure cluster check",
            ),
            Output::Table => {
                let header = [
                    "PROFILE", "PLATFORM", "VERSIONS", "REGIONS", "DOMAINS", "WORKERS", "TTL",
                    "TAGS",
                ];
                print_line(&table(header, list.items.iter().map(row)))?;
            }
        }
        for broken in list.items.iter().filter(|profile| profile.problem.is_some()) {
            let problem = broken.problem.as_deref().unwrap_or_default();
            anstream::eprintln!("{}: {}", sanitize(&broken.name), sanitize(problem));
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn row(profile: &ProfileInfo) -> [String; 8] {
    let list = |items: &[String]| cell(&items.join(", "));
    let platform = match profile.problem {
        Some(_) => "disabled".to_owned(),
        None => profile.platform.as_deref().map(sanitize).unwrap_or_default(),
    };
    [
        sanitize(&profile.name),
        platform,
        list(&profile.versions),
        list(&profile.regions),
        list(&profile.base_domains),
        profile.workers.map(workers).unwrap_or_default(),
        profile.ttl_ms.map(ttl).unwrap_or_default(),
        list(&profile.required_tags),
    ]
}

/// `3, 2 to 10`: the default, and the bounds.
fn workers(bounds: WorkerBounds) -> String {
    let WorkerBounds { min, default, max } = bounds;
    format!("{default}, {min} to {max}")
}

/// `8h00m, up to 3d00h`; without a default, `required` or `none`.
fn ttl(bounds: TtlBounds) -> String {
    let without = if bounds.required { "required" } else { "none" };
    let default = bounds.default.map_or_else(|| without.to_owned(), format_duration);
    format!("{default}, up to {}", format_duration(bounds.max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_shown_with_the_default_first() {
        assert_eq!(workers(WorkerBounds { min: 2, default: 3, max: 10 }), "3, 2 to 10");
        let bounds = |default, required| TtlBounds { min: 0, default, max: 259_200_000, required };
        assert_eq!(ttl(bounds(Some(28_800_000), true)), "8h00m, up to 3d00h");
        assert_eq!(ttl(bounds(None, true)), "required, up to 3d00h");
        assert_eq!(ttl(bounds(None, false)), "none, up to 3d00h");
    }
}
