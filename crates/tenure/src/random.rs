//! Random ids.

use tenure_core::{RequestId, SessionId};

fn draw() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system provides random bytes");
    u128::from_le_bytes(bytes)
}

/// Returns a new request id.
pub(crate) fn request_id() -> RequestId {
    RequestId(draw())
}

/// Returns a new session id.
pub(crate) fn session_id() -> SessionId {
    SessionId(draw())
}
