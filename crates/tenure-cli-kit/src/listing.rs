//! Paginated lists of the API.

use serde::de::DeserializeOwned;
use tenure::http::HttpTransport;
use tenure_wire::ListResponse;

use tenure_core::limits::PAGE_MAX;

use crate::text::query;

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
