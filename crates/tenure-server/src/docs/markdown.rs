//! The subset of Markdown that the pages of `docs/errors` use: headings, paragraphs, lists, tables,
//! code blocks, and inline code, emphasis and links. All text must be escaped.

use super::escape;

/// Renders a page as HTML.
pub(super) fn render(text: &str) -> String {
    let mut html = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("```") {
            let code: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            html += &format!("<pre><code>{}</code></pre>\n", escape(&code.join("\n")));
        } else if let Some(title) = line.strip_prefix('#') {
            html += &heading(title);
        } else if !line.trim().is_empty() {
            let mut block = vec![line];
            while let Some(more) = lines.next_if(|line| !line.is_empty() && !starts_block(line)) {
                block.push(more);
            }
            html += &self::block(&block);
        }
    }
    html
}

fn starts_block(line: &str) -> bool {
    line.starts_with("```") || line.starts_with('#')
}

fn heading(rest: &str) -> String {
    let title = rest.trim_start_matches('#');
    let level = 1 + rest.len() - title.len();
    format!("<h{level}>{}</h{level}>\n", inline(title.trim()))
}

fn block(lines: &[&str]) -> String {
    match lines[0].as_bytes()[0] {
        b'|' => table(lines),
        b'-' => list(lines),
        _ => format!("<p>{}</p>\n", inline(&lines.join(" "))),
    }
}

/// Renders a list; a line without a bullet continues the item before.
fn list(lines: &[&str]) -> String {
    let mut items: Vec<String> = Vec::new();
    for line in lines {
        match (line.strip_prefix("- "), items.last_mut()) {
            (None, Some(item)) => *item += &format!(" {}", line.trim()),
            (item, _) => items.push(item.unwrap_or(line).to_owned()),
        }
    }
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", inline(item))).collect();
    format!("<ul>\n{items}</ul>\n")
}

fn table(lines: &[&str]) -> String {
    let row = |line: &str, cell: &str| {
        let cells = line.trim_matches('|').split('|');
        let cells = cells.map(|text| format!("<{cell}>{}</{cell}>", inline(text.trim())));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let body: String = lines.iter().skip(2).map(|line| row(line, "td")).collect();
    format!(
        "<table>\n<thead>\n{}</thead>\n<tbody>\n{body}</tbody>\n</table>\n",
        row(lines[0], "th")
    )
}

/// Renders inline code, emphasis and links.
pub(super) fn inline(text: &str) -> String {
    let mut html = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['`', '*', '[']) {
        html += &escape(&rest[..at]);
        rest = &rest[at..];
        let (rendered, length) = span(rest).unwrap_or_else(|| (rest[..1].to_owned(), 1));
        html += &rendered;
        rest = &rest[length..];
    }
    html + &escape(rest)
}

/// Renders the inline element at the start of `text` and returns it with its source length.
fn span(text: &str) -> Option<(String, usize)> {
    let between = |mark: &str| {
        let inner = text.strip_prefix(mark)?;
        let end = inner.find(mark).filter(|end| *end > 0)?;
        Some((&inner[..end], end + 2 * mark.len()))
    };
    if let Some((code, length)) = between("`") {
        return Some((format!("<code>{}</code>", escape(code)), length));
    }
    if let Some((strong, length)) = between("**") {
        return Some((format!("<strong>{}</strong>", escape(strong)), length));
    }
    if let Some((emphasis, length)) = between("*") {
        return Some((format!("<em>{}</em>", escape(emphasis)), length));
    }
    let (words, rest) = text.strip_prefix('[')?.split_once("](")?;
    let (to, _) = rest.split_once(')')?;
    Some((link(words, to), words.len() + to.len() + 4))
}

/// Renders a link to another error page; other targets are not served, so only their text is kept.
fn link(words: &str, to: &str) -> String {
    let words = inline(words);
    match to.strip_suffix(".md").filter(|to| !to.contains('/')) {
        Some(code) => format!("<a href=\"/docs/errors/{}\">{words}</a>", escape(code)),
        None => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(inline("a < b & `<c>`"), "a &lt; b &amp; <code>&lt;c&gt;</code>");
        assert_eq!(render("```\n<b>\n```\n"), "<pre><code>&lt;b&gt;</code></pre>\n");
        assert_eq!(inline("[<x>](<y>.md)"), "<a href=\"/docs/errors/&lt;y&gt;\">&lt;x&gt;</a>");
    }

    #[test]
    fn only_links_to_error_pages_are_kept() {
        assert_eq!(inline("[invalid](invalid.md)"), "<a href=\"/docs/errors/invalid\">invalid</a>");
        assert_eq!(inline("[guide](../guide/jobs.md#x)"), "guide");
    }

    #[test]
    fn paragraphs_lists_and_tables_are_rendered() {
        let html = render("# T\n\nA *b*\nc.\n\n- one\n  more\n- two\n\n| h |\n|---|\n| `d` |\n");
        let table = "<table>\n<thead>\n<tr><th>h</th></tr>\n</thead>\n<tbody>\n\
                     <tr><td><code>d</code></td></tr>\n</tbody>\n</table>\n";
        let list = "<ul>\n<li>one more</li>\n<li>two</li>\n</ul>\n";
        assert_eq!(html, format!("<h1>T</h1>\n<p>A <em>b</em> c.</p>\n{list}{table}"));
    }

    #[test]
    fn an_unclosed_mark_is_plain_text() {
        assert_eq!(inline("2 * 3 [x"), "2 * 3 [x");
        assert_eq!(inline("`?tenant=*`"), "<code>?tenant=*</code>");
    }
}
