//! Documentation pages: the OpenAPI document as HTML, and a page for each error code.
//!
//! The OpenAPI pages are rendered once, at the first request. Pages have no scripts, and no styles
//! but `style.css`. `markdown` renders the pages of `docs/errors`.

pub mod errors;
mod markdown;
mod operation;
mod page;
mod schema;

use std::borrow::Cow;
use std::sync::OnceLock;

use tenure_app::Apps;

use crate::api;

/// The style sheet of all pages.
pub(crate) const STYLE: &str = include_str!("style.css");

/// The documents of a server, rendered on first use.
#[derive(Default)]
pub(crate) struct Docs {
    openapi: OnceLock<String>,
    page: OnceLock<String>,
}

impl Docs {
    /// Returns the OpenAPI document of a server with these apps.
    pub(crate) fn openapi(&self, apps: &Apps) -> &str {
        self.openapi.get_or_init(|| api::document_text(apps))
    }

    /// Returns the OpenAPI document as an HTML page.
    pub(crate) fn page(&self, apps: &Apps) -> &str {
        self.page.get_or_init(|| {
            let document = serde_json::from_str(self.openapi(apps)).expect("valid JSON");
            page::render(&document)
        })
    }
}

/// Renders a complete page.
fn html(title: &str, class: &str, content: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<link rel=\"stylesheet\" href=\"/docs/style.css\">\n</head>\n\
         <body class=\"{class}\">\n{content}</body>\n</html>\n"
    )
}

/// Escapes text for HTML.
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
