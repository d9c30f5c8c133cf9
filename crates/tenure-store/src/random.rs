//! Random identifiers and secrets.

use std::cell::RefCell;

use tenure_core::{RequestId, SessionId};

/// Number of random bytes read per system call, to amortize its cost.
const POOL_BYTES: usize = 4_096;

struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> =
        const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

/// Returns 128 bits from the operating system's generator.
fn draw() -> u128 {
    POOL.with_borrow_mut(|pool| {
        if pool.used == POOL_BYTES {
            getrandom::fill(&mut pool.bytes).expect("the operating system provides random bytes");
            pool.used = 0;
        }
        let (from, to) = (pool.used, pool.used + 16);
        pool.used = to;
        // Used bytes may be part of a secret: erase them.
        let drawn = pool.bytes[from..to].try_into().expect("the range has 16 bytes");
        pool.bytes[from..to].fill(0);
        u128::from_le_bytes(drawn)
    })
}

/// Returns a random 64-bit number.
#[cfg(feature = "postgres")]
pub(crate) fn nonce() -> i64 {
    i64::from_le_bytes(draw().to_le_bytes()[..8].try_into().expect("the range has 8 bytes"))
}

/// Returns a new request id.
#[must_use]
pub fn request_id() -> RequestId {
    RequestId(draw())
}

/// Returns a secret of 256 random bits as 64 hexadecimal digits.
#[must_use]
pub fn secret() -> String {
    format!("{}{}", request_id(), request_id())
}

/// Returns a new session id.
#[must_use]
pub fn session_id() -> SessionId {
    SessionId(draw())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    #[test]
    fn ids_are_unique() {
        let drawn: HashSet<_> = (0..10_000).map(|_| super::request_id()).collect();
        assert_eq!(drawn.len(), 10_000);
    }
}
