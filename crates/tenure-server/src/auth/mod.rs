//! Authentication, authorization and rate limits.
//!
//! A key determines tenant and role. `keys` caches the keys, `access` is the table of the role that
//! each route requires, `guard` is the middleware that checks both, `cookie` represents a key in a
//! browser, `limits` has the rate limiters. Handlers get a [`Caller`](tenure_app::Caller) that has
//! passed.

pub mod access;
mod cookie;
pub(crate) mod guard;
pub mod keys;
pub mod limits;

pub(crate) use cookie::SignedIn;
pub use cookie::{COOKIE, Signer};
pub use keys::Keys;
