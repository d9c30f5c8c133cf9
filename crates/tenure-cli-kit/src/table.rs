//! Tables without rules: aligned columns under a header in upper case.

use tenure_core::session::ALL_TENANTS;
use unicode_width::UnicodeWidthStr as _;

use crate::color;
use crate::text::sanitize;

/// Formats rows under a header.
pub fn table<const N: usize>(
    header: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    dynamic_table(&header, rows)
}

/// Like [`table`], for a number of columns that is known only at run time.
pub fn dynamic_table(
    header: &[&str],
    rows: impl IntoIterator<Item = impl IntoIterator<Item = String>>,
) -> String {
    let header = header.iter().map(|name| header_case(name)).collect();
    let rows = rows.into_iter().map(|row| row.into_iter().collect());
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(rows).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width_of = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| width(cell)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width_of).collect();
    let lines: Vec<String> = rows.iter().map(|row| format_row(row, &widths)).collect();
    lines.join("\n")
}

/// Like [`dynamic_table`], with the tenant of each row as first column if `tenant` is `*`.
pub fn tenant_table<'a>(
    tenant: &str,
    header: &[&'a str],
    rows: impl Iterator<Item = (&'a str, Vec<String>)>,
) -> String {
    let all = tenant == ALL_TENANTS;
    let first = all.then_some("TENANT").into_iter();
    let header: Vec<&str> = first.chain(header.iter().copied()).collect();
    let row = |(tenant, row)| all.then(|| sanitize(tenant)).into_iter().chain(row);
    dynamic_table(&header, rows.map(row))
}

/// Returns the name of a column as all tables show it.
#[must_use]
pub fn header_case(name: &str) -> String {
    name.to_uppercase()
}

/// Joins the cells of a row, each padded to the width of its column, except the last one.
fn format_row(row: &[String], widths: &[usize]) -> String {
    let pad = |(cell, max): (&String, &usize)| format!(" {cell}{} ", " ".repeat(max - width(cell)));
    let line: String = row.iter().zip(widths).map(pad).collect();
    line.trim_end().to_owned()
}

/// Returns the number of columns that a text occupies on a terminal.
pub(crate) fn width(text: &str) -> usize {
    color::strip(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_whatever_the_colour_of_a_cell_is() {
        let rows =
            || ["running", "queued", "待機"].map(|word| [color::state(word), "x".to_owned()]);
        let shown = table(["state", "Last used"], rows());
        assert!(shown.contains("\u{1b}[36mrunning\u{1b}[0m"), "{shown:?}");
        let plain = " STATE    LAST USED\n running  x\n queued   x\n 待機     x";
        assert_eq!(color::strip(&shown), plain);
    }

    #[test]
    fn the_tenant_is_a_column_if_there_are_several() {
        let rows = || [("acme", vec!["a".to_owned()])].into_iter();
        assert_eq!(tenant_table("acme", &["lock"], rows()), " LOCK\n a");
        assert_eq!(tenant_table("*", &["lock"], rows()), " TENANT  LOCK\n acme    a");
    }
}
