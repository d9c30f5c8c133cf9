//! Paginated lists of the API.

use serde::de::DeserializeOwned;
use tenure::client::{DEFAULT_TENANT, tenant_option};
use tenure::http::HttpTransport;
use tenure_core::session::ALL_TENANTS;
use tenure_wire::ListResponse;

use tenure_core::limits::PAGE_MAX;

use crate::hint;
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
    /// What to do then: `no kinds are declared`, or a command after `try: ` or `see: `, which gets
    /// the option of the tenant.
    pub hint: &'a str,
    /// Whether the command of the hint acts in one tenant.
    pub hint_in_one_tenant: bool,
    /// The command that lists everything.
    pub list: &'a str,
}

impl Empty<'_> {
    /// Prints the message about the list of a tenant. `filters` are options with their values.
    pub fn print(&self, tenant: &str, filters: &[(&str, Option<String>)]) {
        hint::print(&self.text(&sanitize(tenant), filters));
    }

    fn text(&self, tenant: &str, filters: &[(&str, Option<String>)]) -> String {
        let given = filters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
        let given: Vec<_> = given
            .map(|(name, value)| format!("--{name} {}", hint::quote(&sanitize(value))))
            .collect();
        let Self { none, item, hint, list, .. } = self;
        let option = tenant_option(tenant);
        if given.is_empty() {
            let place = match tenant {
                ALL_TENANTS => "any tenant".to_owned(),
                tenant => format!("tenant {tenant}"),
            };
            let option = match tenant {
                ALL_TENANTS if self.hint_in_one_tenant => format!(" --tenant {DEFAULT_TENANT}"),
                _ => option,
            };
            let is_command = hint.starts_with("try: ") || hint.contains("see: ");
            let hint = if is_command { hint::add_options(hint, &option) } else { hint.to_string() };
            format!("{none} in {place}; {hint}")
        } else {
            let given = given.join(" ");
            format!("no {item} matches {given}{option}; without filters: {list}{option}")
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
            hint: "try: tenure exec demo/a -- sleep 60",
            hint_in_one_tenant: true,
            list: "tenure lock ls",
        };
        let filters = |kind: Option<&str>| [("kind", kind.map(str::to_owned)), ("name", None)];
        for (tenant, kind, expected) in [
            (
                "default",
                None,
                "no locks are held in tenant default; try: tenure exec demo/a -- sleep 60",
            ),
            (
                "acme",
                None,
                "no locks are held in tenant acme; try: tenure exec demo/a --tenant acme -- sleep \
                 60",
            ),
            (
                "*",
                None,
                "no locks are held in any tenant; try: tenure exec demo/a --tenant default -- \
                 sleep 60",
            ),
            (
                "default",
                Some("db\u{1b}[2J"),
                "no lock matches --kind db; without filters: tenure lock ls",
            ),
            (
                "*",
                Some("db"),
                "no lock matches --kind db --tenant '*'; without filters: tenure lock ls \
                 --tenant '*'",
            ),
        ] {
            assert_eq!(empty.text(tenant, &filters(kind)), expected);
        }
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
