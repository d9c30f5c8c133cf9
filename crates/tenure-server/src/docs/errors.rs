//! A page for each stable code, from `docs/errors`. The `type` of a problem is its address.

use super::{html, markdown};

macro_rules! pages {
    ($($code:literal)+) => {
        /// All codes with their pages, as they are in the repository.
        pub const PAGES: &[(&str, &str)] =
            &[$(($code, include_str!(concat!("../../../../docs/errors/", $code, ".md")))),+];
    };
}

pages! {
    "held" "lost" "rejected" "bad_transition" "not_found" "conflict" "invalid" "unauthenticated"
    "forbidden" "rate_limited" "too_large" "unavailable" "timeout"
}

/// The page about a code, if there is such a code.
pub(crate) fn page(code: &str) -> Option<String> {
    let (_, text) = PAGES.iter().find(|(known, _)| *known == code)?;
    let back = "<nav><a href=\"/docs\">Tenure API</a> › <a href=\"/docs#errors\">errors</a></nav>";
    let content = format!("{back}\n<main>\n{}</main>\n", markdown::render(text));
    Some(html(&format!("{code} · Tenure"), "plain", &content))
}

/// What a code means: the first paragraph of its page.
pub(super) fn meaning(text: &str) -> String {
    let paragraphs = text.split("\n\n").skip(2);
    paragraphs.take(1).map(|first| markdown::inline(&first.replace('\n', " "))).collect()
}

/// The line below the title, which says the status.
pub(super) fn status(text: &str) -> &str {
    text.lines().find(|line| line.starts_with("HTTP ")).unwrap_or_default()
}
