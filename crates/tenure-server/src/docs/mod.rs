//! What the server says about itself: the OpenAPI document as a page, and a page for each error.
//!
//! All of it is made once, at the first request, from what is in the binary. The pages carry no
//! script, and no style but that of `style.css`. `markdown` renders the pages of `docs/errors`.

pub mod errors;
mod markdown;
mod operation;
mod page;
mod schema;

use std::borrow::Cow;
use std::sync::OnceLock;

use tenure_app::Apps;

use crate::api;

/// The style of all pages.
pub(crate) const STYLE: &str = include_str!("style.css");

/// The documents of a server, rendered on first use.
#[derive(Default)]
pub(crate) struct Docs {
    openapi: OnceLock<String>,
    page: OnceLock<String>,
}

impl Docs {
    /// The OpenAPI document of a server with these apps.
    pub(crate) fn openapi(&self, apps: &Apps) -> &str {
        self.openapi.get_or_init(|| api::document_text(apps))
    }

    /// The same document as a page.
    pub(crate) fn page(&self, apps: &Apps) -> &str {
        self.page.get_or_init(|| {
            let document = serde_json::from_str(self.openapi(apps)).expect("valid JSON");
            page::render(&document)
        })
    }
}

/// A whole page.
fn html(title: &str, class: &str, content: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<link rel=\"stylesheet\" href=\"/docs/style.css\">\n</head>\n\
         <body class=\"{class}\">\n{content}</body>\n</html>\n"
    )
}

/// A text as HTML shows it.
fn escape(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>', '"', '\'']) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    Cow::Owned(escaped)
}
