//! The id of the current request, for logs, problems and the audit log.

tokio::task_local! {
    static CURRENT: String;
}

/// Returns the id of the current request, or a new one outside of any request.
#[must_use]
pub fn current() -> String {
    CURRENT.try_with(Clone::clone).unwrap_or_else(|_| new())
}

/// Generates a request id.
#[must_use]
pub fn new() -> String {
    tenure_store::random::request_id().to_string()
}

/// Runs `serve` with `id` as the id of the current request.
pub async fn scope<T>(id: String, serve: impl Future<Output = T>) -> T {
    CURRENT.scope(id, serve).await
}
