//! A page for each error code, from `docs/errors`. The `type` of a problem is its path.

use super::{html, markdown};

macro_rules! pages {
    ($($code:literal)+) => {
        /// All codes with their pages in Markdown.
        pub const PAGES: &[(&str, &str)] =
            &[$(($code, include_str!(concat!("../../../../docs/errors/", $code, ".md")))),+];
    };
}

pages! {
    "held" "lost" "rejected" "bad_transition" "not_found" "conflict" "invalid" "unauthenticated"
    "forbidden" "rate_limited" "too_large" "unavailable" "timeout"
    "precondition_failed"
}

/// Renders the page of a code, if the code exists.
pub(crate) fn page(code: &str) -> Option<String> {
    let (_, text) = PAGES.iter().find(|(name, _)| *name == code)?;
    let back = "<nav><a href=\"/docs\">Tenure API</a> › <a href=\"/docs#errors\">errors</a></nav>";
    let content = format!("{back}\n<main>\n{}</main>\n", markdown::render(text));
    Some(html(&format!("{code} · Tenure"), "plain", &content))
}

/// Returns the meaning of a code: the first paragraph of its page.
pub(super) fn meaning(text: &str) -> String {
    let paragraphs = text.split("\n\n").skip(2);
    paragraphs.take(1).map(|first| markdown::inline(&first.replace('\n', " "))).collect()
}

/// Returns the line with the HTTP status, below the title.
pub(super) fn status(text: &str) -> &str {
    text.lines().find(|line| line.starts_with("HTTP ")).unwrap_or_default()
}
