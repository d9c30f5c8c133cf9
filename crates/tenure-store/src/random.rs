//! The one place where identifiers are drawn.

use tenure_core::{RequestId, SessionId};

/// 128 bits from the operating system.
fn draw() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    u128::from_le_bytes(bytes)
}

/// A request id that nobody has.
#[must_use]
pub fn request_id() -> RequestId {
    RequestId(draw())
}

/// A session id that nobody has.
#[must_use]
pub fn session_id() -> SessionId {
    SessionId(draw())
}
