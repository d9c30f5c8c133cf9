//! Ids on the command line: complete, or a part that is unique.
//!
//! A complete id is used as it is. A part is looked up in the list of the objects, which costs a
//! few requests.

use std::str::FromStr;

use tenure::Error;
use tenure::http::HttpTransport;
use tenure_core::JobId;
use tenure_wire::{JobInfo, KeyInfo, ListResponse};

use crate::document::usage_error;
use crate::listing::fetch;
use crate::text::sanitize;

/// Number of digits of the id of a job or a run.
const JOB_DIGITS: usize = 32;
/// Number of digits of the id of a key.
const KEY_DIGITS: usize = 12;
/// Minimum number of digits of a part.
const PART_DIGITS_MIN: usize = 8;
/// Maximum number of jobs that are searched for the end of an id, the newest ones.
const SEARCHED_MAX: usize = 10_000;
/// Maximum number of candidates in a message.
const CANDIDATES_MAX: usize = 10;

/// Id of a job or a run: 32 hexadecimal digits, or 8 or more from its start or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobArg {
    /// A complete id.
    Complete(JobId),
    /// Its first or last digits.
    Part(String),
}

impl FromStr for JobArg {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(id) = text.parse() {
            return Ok(Self::Complete(id));
        }
        if is_part(text) && text.len() < JOB_DIGITS {
            return Ok(Self::Part(text.to_ascii_lowercase()));
        }
        Err(format!(
            "an id is {JOB_DIGITS} hexadecimal digits, or at least {PART_DIGITS_MIN} from its \
             start or its end, not {text:?}"
        ))
    }
}

fn is_part(text: &str) -> bool {
    text.len() >= PART_DIGITS_MIN && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

impl JobArg {
    /// Returns the complete id. Looks a part up among the jobs of `kind`, or all jobs.
    pub async fn resolve(
        &self,
        transport: &HttpTransport,
        kind: Option<&str>,
    ) -> anyhow::Result<JobId> {
        let part = match self {
            Self::Complete(id) => return Ok(*id),
            Self::Part(part) => part,
        };
        let kind = ("kind", kind.map(str::to_owned));
        // Ids sort by time and are listed newest first: those with the prefix follow its last id.
        let cursor = Some(last_with_prefix(part)?.to_string());
        let filters = [kind.clone(), ("cursor", cursor)];
        let page: ListResponse<JobInfo> =
            transport.get(&crate::text::query("/v1/jobs", &limited(&filters))).await?;
        let starts = |job: &JobInfo| job.id.to_string().starts_with(part);
        let mut found: Vec<JobInfo> = page.items.into_iter().take_while(starts).collect();
        if found.is_empty() {
            let list = fetch::<JobInfo>(transport, "/v1/jobs", &[kind], SEARCHED_MAX).await?;
            let ends = |job: &JobInfo| job.id.to_string().ends_with(part);
            found = list.items.into_iter().filter(ends).collect();
        }
        match &found[..] {
            [] => Err(Error::NotFound(format!(
                "no id starts with {part}, and none of the newest {SEARCHED_MAX} ends with it; \
                 give all {JOB_DIGITS} digits of the id"
            ))
            .into()),
            [job] => Ok(job.id),
            _ => Err(ambiguous(part, found.iter().map(describe_job))),
        }
    }
}

/// Returns an id above all those that start with `part` and below or equal to all others above.
fn last_with_prefix(part: &str) -> anyhow::Result<JobId> {
    let last: JobId = format!("{part:f<JOB_DIGITS$}").parse()?;
    // The cursor itself is not listed.
    Ok(JobId(last.0.saturating_add(1)))
}

/// Returns the filters with a limit that suffices to tell one candidate from too many.
fn limited<'a>(filters: &[(&'a str, Option<String>)]) -> Vec<(&'a str, Option<String>)> {
    let mut filters = filters.to_vec();
    filters.push(("limit", Some((CANDIDATES_MAX + 1).to_string())));
    filters
}

fn describe_job(job: &JobInfo) -> String {
    let JobInfo { id, kind, name, operation, state, .. } = job;
    format!("{id}  {kind}/{name} {operation}, {}", state.as_str())
}

/// Returns the error for a part of several ids.
fn ambiguous(part: &str, candidates: impl ExactSizeIterator<Item = String>) -> anyhow::Error {
    let more = candidates.len() > CANDIDATES_MAX;
    let mut lines: Vec<_> =
        candidates.take(CANDIDATES_MAX).map(|line| format!("  {}", sanitize(&line))).collect();
    if more {
        lines.push("  …".to_owned());
    }
    let lines = lines.join("\n");
    usage_error(format!("{part} is part of several ids; give more digits of one of them:\n{lines}"))
}

/// Returns the complete id of a key, given as such or by its first or last digits.
pub async fn resolve_key(transport: &HttpTransport, text: &str) -> anyhow::Result<String> {
    // Anything else is left to the server, which says that there is no such key.
    if text.len() >= KEY_DIGITS || !is_part(text) {
        return Ok(text.to_owned());
    }
    let part = text.to_ascii_lowercase();
    let keys: ListResponse<KeyInfo> = transport.get("/v1/keys").await?;
    let matches = |key: &&KeyInfo| key.id.starts_with(&part) || key.id.ends_with(&part);
    let found: Vec<_> = keys.items.iter().filter(matches).collect();
    match &found[..] {
        [] => Ok(text.to_owned()),
        [key] => Ok(key.id.clone()),
        _ => {
            let describe = |key: &&KeyInfo| format!("{}  {}, {}", key.id, key.name, key.tenant);
            Err(ambiguous(&part, found.iter().map(describe)))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::serve_responses;

    const EARLY: &str = "01a1e2478f06627e214b4b7c7b1a8329";
    const LATE: &str = "01a1e2478f07998877665544332211aa";

    fn job(id: &str) -> Value {
        json!({
            "id": id, "tenant": "default", "kind": "report", "name": "r1", "operation": "run",
            "state": "queued", "priority": 0, "by": "ann", "attempt": 0, "attempts": [],
            "submitted_at": "", "due_at": "", "joined": 0, "generation": 0,
        })
    }

    fn page(ids: &[&str]) -> Value {
        json!({ "items": ids.iter().map(|id| job(id)).collect::<Vec<_>>(), "next": null })
    }

    async fn resolve(text: &str, responses: Vec<Value>) -> (Result<JobId, String>, Vec<String>) {
        let expected = responses.len();
        let (transport, requests) = serve_responses(responses).await;
        let arg: JobArg = text.parse().unwrap();
        let resolved = arg.resolve(&transport, None).await;
        let requests = if expected == 0 { Vec::new() } else { requests.await.unwrap() };
        (resolved.map_err(|error| format!("{error:#}")), requests)
    }

    #[tokio::test]
    async fn a_complete_id_is_not_looked_up() {
        assert_eq!(resolve(EARLY, Vec::new()).await, (Ok(EARLY.parse().unwrap()), Vec::new()));
    }

    #[tokio::test]
    async fn a_unique_prefix_is_found_with_one_request() {
        let (id, requests) = resolve("01A1E2478F06", vec![page(&[EARLY])]).await;
        assert_eq!(id, Ok(EARLY.parse().unwrap()));
        let cursor = format!("01a1e2478f07{}", "0".repeat(20));
        assert_eq!(requests, [format!("/v1/jobs?cursor={cursor}&limit=11&tenant=default")]);
    }

    #[tokio::test]
    async fn a_unique_suffix_is_found_among_the_newest() {
        let (id, requests) = resolve("332211aa", vec![page(&[]), page(&[LATE, EARLY])]).await;
        assert_eq!(id, Ok(LATE.parse().unwrap()));
        assert_eq!(requests[1], "/v1/jobs?limit=1000&tenant=default");
        let (none, _) = resolve("00000000", vec![page(&[LATE]), page(&[LATE, EARLY])]).await;
        assert!(none.unwrap_err().contains("no id starts with 00000000"));
    }

    #[tokio::test]
    async fn an_ambiguous_part_lists_the_candidates() {
        let (several, _) = resolve("01a1e247", vec![page(&[LATE, EARLY])]).await;
        let why = several.unwrap_err();
        for part in ["several ids", LATE, EARLY, "report/r1 run, queued"] {
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn a_part_has_at_least_eight_digits() {
        for bad in ["", "01a1e24", "01a1e24g", &*"0".repeat(33)] {
            let why = bad.parse::<JobArg>().unwrap_err();
            assert!(why.contains("32 hexadecimal digits, or at least 8"), "{why}");
        }
    }

    #[tokio::test]
    async fn keys_are_found_by_a_part() {
        let key = |id: &str| {
            json!({
                "id": id, "name": "ci", "tenant": "acme", "role": "worker", "created_at": "",
                "created_by": "admin", "good": true,
            })
        };
        let list = || json!({ "items": [key("3f2a9c41d07b"), key("3f2a9c41ffff")], "next": null });
        let (transport, _) = serve_responses(vec![list(), list()]).await;
        assert_eq!(resolve_key(&transport, "3f2a9c41d07b").await.unwrap(), "3f2a9c41d07b");
        assert_eq!(resolve_key(&transport, "9c41d07b").await.unwrap(), "3f2a9c41d07b");
        let why = resolve_key(&transport, "3f2a9c41").await.unwrap_err().to_string();
        assert!(why.contains("3f2a9c41d07b  ci, acme"), "{why}");
    }
}
