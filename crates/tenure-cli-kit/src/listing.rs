//! Paginated lists of the API.

use serde::de::DeserializeOwned;
use tenure::http::HttpTransport;
use tenure_wire::ListResponse;

use tenure_core::limits::PAGE_MAX;

use crate::text::{query, sanitize};

/// Reads up to `limit` items of the list at `path`, page by page.
pub async fn fetch<T: DeserializeOwned>(
    transport: &HttpTransport,
    path: &str,
    filters: &[(&str, Option<String>)],
    limit: usize,
) -> anyhow::Result<ListResponse<T>> {
    let mut list = ListResponse { items: Vec::new(), next: None };
    loop {
        let size = (limit - list.items.len()).min(PAGE_MAX);
        let mut parts = filters.to_vec();
        parts.extend([("limit", Some(size.to_string())), ("cursor", list.next.clone())]);
        let page: ListResponse<T> = transport.get(&query(path, &parts)).await?;
        list.items.extend(page.items);
        list.next = page.next;
        if list.next.is_none() || list.items.len() >= limit {
            return Ok(list);
        }
    }
}

/// What an empty list says on stderr: what would fill it, or which filters exclude everything.
pub struct Empty<'a> {
    /// The sentence without filters: `no locks are held`.
    pub none: &'a str,
    /// The noun of one item: `lock`.
    pub item: &'a str,
    /// A command that would fill the list.
    pub fill: &'a str,
    /// The command that lists everything.
    pub list: &'a str,
}

impl Empty<'_> {
    /// Prints the message. `filters` are options with their values.
    pub fn print(&self, filters: &[(&str, Option<String>)]) {
        anstream::eprintln!("{}", self.text(filters));
    }

    fn text(&self, filters: &[(&str, Option<String>)]) -> String {
        let given = filters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let given: Vec<_> =
            given.map(|(name, value)| format!("--{name} {}", sanitize(value))).collect();
        let Self { none, item, fill, list } = self;
        if given.is_empty() {
            format!("{none}; try: {fill}")
        } else {
            format!("no {item} matches {}; without filters: {list}", given.join(" "))
        }
    }
}

/// Prints a hint on stderr if the list has further pages.
pub fn print_more_hint<T>(list: &ListResponse<T>) {
    if list.next.is_some() {
        anstream::eprintln!("more results exist; raise --limit or narrow the filters");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::serve_responses;

    #[test]
    fn an_empty_list_says_what_would_fill_it_or_which_filters_exclude_everything() {
        let empty = Empty {
            none: "no locks are held",
            item: "lock",
            fill: "tenure exec demo/a -- sleep 60",
            list: "tenure lock ls",
        };
        let filters = |kind: Option<&str>| [("kind", kind.map(str::to_owned)), ("name", None)];
        assert_eq!(
            empty.text(&filters(None)),
            "no locks are held; try: tenure exec demo/a -- sleep 60"
        );
        assert_eq!(
            empty.text(&filters(Some("db\u{1b}[2J"))),
            "no lock matches --kind db; without filters: tenure lock ls"
        );
    }

    #[tokio::test]
    async fn lists_are_read_page_by_page_up_to_the_limit() {
        let page = |n: usize, next: &str| json!({ "items": vec![0; n], "next": next });
        let (transport, requests) =
            serve_responses(vec![page(PAGE_MAX, "a"), page(500, "b")]).await;
        let kind = [("kind", Some("db".to_owned()))];
        let list: ListResponse<Value> = fetch(&transport, "/v1/jobs", &kind, 1_500).await.unwrap();
        assert_eq!((list.items.len(), list.next.as_deref()), (1_500, Some("b")));
        let expected = ["kind=db&limit=1000", "kind=db&limit=500&cursor=a"];
        let expected = expected.map(|query| format!("/v1/jobs?{query}&tenant=default"));
        assert_eq!(requests.await.unwrap(), expected);
    }
}
