//! When a request is repeated: which answers, and after what delay.
//!
//! Pure: the caller waits. There is no jitter, since few clients share a server.

use std::time::Duration;

use http::StatusCode;
use http::header::{HeaderMap, RETRY_AFTER};

/// Longest delay that this crate chooses itself.
const DELAY_MAX: Duration = Duration::from_secs(5);
/// Longest delay that a server can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// Whether a later attempt may be answered differently.
pub(crate) fn is_transient(status: StatusCode) -> bool {
    status.is_server_error()
        || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT)
}

/// Returns the delay that the server asks for, if it is in seconds.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// Returns the delay after a failed attempt, counted from zero.
pub(crate) fn delay(first: Duration, attempt: u32, asked: Option<Duration>) -> Duration {
    let factor = 2_u32.saturating_pow(attempt);
    let chosen = first.saturating_mul(factor).min(DELAY_MAX);
    chosen.max(asked.unwrap_or_default().min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(250);

    #[test]
    fn delays_double_up_to_their_maximum() {
        let delays = [0, 1, 2, 4, 5, 40].map(|attempt| delay(FIRST, attempt, None));
        assert_eq!(delays.map(|delay| delay.as_millis()), [250, 500, 1_000, 4_000, 5_000, 5_000]);
    }

    #[test]
    fn the_server_can_ask_for_more_up_to_a_bound() {
        let asked = |seconds| delay(FIRST, 0, Some(Duration::from_secs(seconds)));
        assert_eq!(asked(0), FIRST);
        assert_eq!(asked(7), Duration::from_secs(7));
        assert_eq!(asked(30), RETRY_AFTER_MAX);
        assert_eq!(asked(86_400), RETRY_AFTER_MAX);
    }

    #[test]
    fn only_seconds_are_understood() {
        let of =
            |text: &str| retry_after(&HeaderMap::from_iter([(RETRY_AFTER, text.parse().unwrap())]));
        assert_eq!(of("3"), Some(Duration::from_secs(3)));
        assert_eq!(of("Fri, 31 Dec 1999 23:59:59 GMT"), None);
        assert_eq!(retry_after(&HeaderMap::new()), None);
    }

    #[test]
    fn refusals_are_final_and_overload_is_not() {
        let transient = |code| is_transient(StatusCode::from_u16(code).unwrap());
        assert!([408, 429, 500, 502, 503, 504].into_iter().all(transient));
        assert!(![200, 400, 401, 403, 404, 409, 410, 422].into_iter().any(transient));
    }
}
