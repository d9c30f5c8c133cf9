//! Who asks, and what that allows.
//!
//! A key decides tenant and role. `keys` knows the keys, `access` is the one table of what each
//! route needs, `guard` stands before every route and asks both, `cookie` is how a browser carries
//! a key, `limits` bounds how much anybody may ask. Handlers get a [`Caller`] that has passed.

pub mod access;
mod cookie;
pub(crate) mod guard;
pub mod keys;
pub mod limits;
mod veil;

pub use cookie::{COOKIE, Signer};
pub use keys::Keys;
pub use veil::Veil;
