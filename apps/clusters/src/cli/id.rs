//! Clusters on the command line: the id, or the beginning of a name that only one cluster has.

use std::str::FromStr;

use tenure::Error;
use tenure::http::HttpTransport;
use tenure_cli_kit::document::usage_error;
use tenure_cli_kit::listing::fetch;
use tenure_cli_kit::text::sanitize;

use crate::wire::ClusterInfo;

/// Maximum number of clusters among which a part is searched.
const SEARCHED_MAX: usize = 10_000;
/// Maximum number of candidates in a message.
const CANDIDATES_MAX: usize = 10;

/// A cluster of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClusterArg {
    /// `PLATFORM:NAME.BASE_DOMAIN`.
    Complete(String),
    /// The beginning of `NAME.BASE_DOMAIN`.
    Part(String),
}

impl FromStr for ClusterArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@+=-".contains(c);
        if text.is_empty() || !text.chars().all(allowed) {
            let why = "a cluster is PLATFORM:NAME.BASE_DOMAIN, or the beginning of its name; \
                       `tenure cluster ls` lists them";
            return Err(why.to_owned());
        }
        Ok(match text.contains(':') {
            true => Self::Complete(text.to_owned()),
            false => Self::Part(text.to_owned()),
        })
    }
}

impl ClusterArg {
    /// Returns the id. Looks a part up among the clusters of the tenant.
    pub(super) async fn resolve(&self, transport: &HttpTransport) -> anyhow::Result<String> {
        let part = match self {
            Self::Complete(id) => return Ok(id.clone()),
            Self::Part(part) => part,
        };
        let list = fetch::<ClusterInfo>(transport, "/v1/clusters", &[], SEARCHED_MAX).await?;
        let ids: Vec<&str> = list.items.iter().map(|cluster| &*cluster.id).collect();
        choose(part, &ids)
    }
}

/// Returns the id that `part` stands for: a whole name wins over the beginning of a longer one.
fn choose(part: &str, ids: &[&str]) -> anyhow::Result<String> {
    let host = |id: &str| id.split_once(':').map_or("", |(_, host)| host).to_owned();
    let whole = |id: &&&str| host(id) == part || host(id).split('.').next() == Some(part);
    let mut found: Vec<&&str> = ids.iter().filter(whole).collect();
    if found.is_empty() {
        found = ids.iter().filter(|id| host(id).starts_with(part)).collect();
    }
    match &found[..] {
        [] => Err(Error::NotFound(format!(
            "no cluster has a name that begins with {part}; `tenure cluster ls` lists them"
        ))
        .into()),
        [id] => Ok((**id).to_owned()),
        several => {
            let shown = several.iter().take(CANDIDATES_MAX).map(|id| format!("  {}", sanitize(id)));
            let more = (several.len() > CANDIDATES_MAX).then(|| "  …".to_owned());
            let lines: Vec<String> = shown.chain(more).collect();
            let lines = lines.join("\n");
            Err(usage_error(format!("{part} is part of several names; give the id:\n{lines}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: [&str; 4] =
        ["aws:shop.a.example", "aws:shop-2.a.example", "gcp:blog.a.example", "gcp:blog.b.example"];

    fn chosen(part: &str) -> Result<String, String> {
        choose(part, &IDS).map_err(|error| error.to_string())
    }

    #[test]
    fn a_unique_beginning_of_a_name_is_enough() {
        assert_eq!(chosen("shop-"), Ok("aws:shop-2.a.example".to_owned()));
        assert_eq!(chosen("blog.b"), Ok("gcp:blog.b.example".to_owned()));
        assert_eq!(chosen("shop"), Ok("aws:shop.a.example".to_owned()), "a whole name wins");
    }

    #[test]
    fn an_ambiguous_or_unknown_name_is_refused() {
        let several = chosen("blog").unwrap_err();
        assert!(several.contains("gcp:blog.a.example\n  gcp:blog.b.example"), "{several}");
        assert!(chosen("x").unwrap_err().contains("begins with x"));
        assert!(chosen("sho").unwrap_err().contains("several names"));
    }

    #[test]
    fn ids_are_parsed() {
        let complete = ClusterArg::Complete("aws:a.b.c".to_owned());
        assert_eq!("aws:a.b.c".parse(), Ok(complete));
        assert_eq!("a".parse(), Ok(ClusterArg::Part("a".to_owned())));
        for bad in ["", "a/b", "a b", "a?b"] {
            assert!(bad.parse::<ClusterArg>().is_err(), "{bad}");
        }
    }
}
