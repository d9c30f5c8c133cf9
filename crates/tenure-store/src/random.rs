//! The one place where identifiers are drawn.

use std::cell::RefCell;

use tenure_core::{RequestId, SessionId};

/// Random bytes that are fetched from the operating system at once: a call for each id would cost
/// more than the id is worth.
const POOL_BYTES: usize = 4_096;

struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> =
        const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

/// 128 bits from the operating system.
fn draw() -> u128 {
    POOL.with_borrow_mut(|pool| {
        if pool.used == POOL_BYTES {
            getrandom::fill(&mut pool.bytes).expect("the operating system gives random bytes");
            pool.used = 0;
        }
        let (from, to) = (pool.used, pool.used + 16);
        pool.used = to;
        // What was given out is not left lying in memory.
        let drawn = pool.bytes[from..to].try_into().expect("16 bytes are 16 bytes");
        pool.bytes[from..to].fill(0);
        u128::from_le_bytes(drawn)
    })
}

/// A number that hardly anybody has.
pub(crate) fn nonce() -> i64 {
    i64::from_le_bytes(draw().to_le_bytes()[..8].try_into().expect("8 bytes are 8 bytes"))
}

/// A request id that nobody has.
#[must_use]
pub fn request_id() -> RequestId {
    RequestId(draw())
}

/// 256 bits that nobody guesses, as 64 characters.
#[must_use]
pub fn secret() -> String {
    format!("{}{}", request_id(), request_id())
}

/// A session id that nobody has.
#[must_use]
pub fn session_id() -> SessionId {
    SessionId(draw())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn no_id_is_drawn_twice() {
        let drawn: HashSet<_> = (0..10_000).map(|_| super::request_id()).collect();
        assert_eq!(drawn.len(), 10_000);
    }
}
