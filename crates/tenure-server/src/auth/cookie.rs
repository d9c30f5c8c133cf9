//! Session cookies of browsers: a signed cookie that names a key and expires after some hours.
//!
//! The cookie does not contain the secret of the key, is valid only as long as the key and until it
//! is signed out, and is verified without reading the store. Since a browser may attach it to
//! cross-site requests, mutations also require a CSRF token that only pages of this server know.

use axum::http::HeaderMap;
use axum::http::header::COOKIE as COOKIE_HEADER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tenure_core::Millis;

use super::keys::{constant_time_eq, hex, unhex};

/// The name of the cookie.
pub const COOKIE: &str = "tenure_session";
/// The header with the CSRF token.
const CSRF_HEADER: &str = "x-tenure-csrf";
/// Validity of a cookie.
pub(crate) const TTL_MS: u64 = 12 * 60 * 60 * 1_000;
/// Stands in for the id of the admin key, which has none.
const ADMIN: &str = "admin";

/// Signs and verifies cookies.
pub struct Signer {
    /// Secret shared by all servers of the store.
    secret: String,
    /// Derived from the admin key, which is not in the store: read access to the store, or to a
    /// backup of it, does not suffice to forge a cookie.
    admin_fingerprint: String,
}

/// A verified cookie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedIn {
    /// Id of the cookie.
    pub(crate) id: String,
    /// When it expires.
    pub(crate) until: Millis,
    /// Id of the key; `None` for the admin key.
    pub(crate) key: Option<String>,
    /// CSRF token that mutations must carry.
    pub(crate) csrf: String,
}

impl Signer {
    /// Creates a signer. `secret` is shared by all servers of the store.
    #[must_use]
    pub fn new(secret: String, admin_fingerprint: String) -> Self {
        Self { secret, admin_fingerprint }
    }

    /// Returns the value of a new cookie for a key, and its CSRF token.
    pub(crate) fn issue(&self, key: Option<&str>, now: Millis) -> (String, String) {
        let until = now.plus(TTL_MS).0;
        let nonce = tenure_store::random::request_id();
        let payload = format!("{}.{until}.{nonce}", key.unwrap_or(ADMIN));
        let value = format!("{payload}.{}", self.sign("cookie", &payload));
        let csrf = self.sign("csrf", &value);
        (value, csrf)
    }

    /// Verifies the cookie of a request; `None` if there is none, or it is forged or expired.
    pub(crate) fn read(&self, headers: &HeaderMap, now: Millis) -> Option<SignedIn> {
        let value = cookie(headers)?;
        let (payload, signature) = value.rsplit_once('.')?;
        let (expected, presented) = (unhex(&self.sign("cookie", payload))?, unhex(signature)?);
        let mut parts = payload.split('.');
        let (key, until) = (parts.next()?, parts.next()?.parse::<u64>().ok()?);
        if !constant_time_eq(&expected, &presented) || until <= now.0 {
            return None;
        }
        let key = (key != ADMIN).then(|| key.to_owned());
        let (id, until) = (parts.next()?.to_owned(), Millis(until));
        Some(SignedIn { id, until, key, csrf: self.sign("csrf", value) })
    }

    fn sign(&self, usage: &str, text: &str) -> String {
        hex(&self.mac(&format!("{usage} {}", self.admin_fingerprint), text))
    }

    /// Computes a MAC with the shared secret; `usage` separates the uses of it.
    pub(crate) fn mac(&self, usage: &str, text: &str) -> [u8; 32] {
        let key = format!("{usage}\n{}", self.secret);
        let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes());
        let mac = mac.expect("HMAC takes keys of any length").chain_update(text);
        mac.finalize().into_bytes().into()
    }
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(COOKIE_HEADER).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| name.trim() == COOKIE).map(|(_, value)| value.trim())
}

/// Returns whether a mutation is same-origin and carries the CSRF token of its cookie.
pub(crate) fn has_valid_csrf(headers: &HeaderMap, signed_in: &SignedIn) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let token = text(CSRF_HEADER).and_then(unhex);
    let expected = unhex(&signed_in.csrf);
    let cross_origin = text("sec-fetch-site").is_some_and(|site| site != "same-origin");
    !cross_origin && token.zip(expected).is_some_and(|(a, b)| constant_time_eq(&a, &b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, String)]) -> HeaderMap {
        let parsed = pairs.iter().map(|(name, value)| {
            ((*name).parse().expect("a name"), value.parse().expect("a value"))
        });
        parsed.collect()
    }

    fn with(value: &str) -> HeaderMap {
        headers(&[("cookie", format!("a=b; {COOKIE}={value}"))])
    }

    #[test]
    fn a_cookie_expires_and_cannot_be_forged() {
        let signer = Signer::new("secret".to_owned(), "root".to_owned());
        let (value, csrf) = signer.issue(Some("k1"), Millis(1_000));
        let signed_in = signer.read(&with(&value), Millis(2_000)).expect("valid");
        assert_eq!((signed_in.key.as_deref(), signed_in.csrf), (Some("k1"), csrf));
        assert_eq!(signer.read(&with(&value), Millis(1_000 + TTL_MS)), None, "expired");
        assert_eq!(signer.read(&with(&value.replace("k1", "k2")), Millis(2_000)), None);
        let other = Signer::new("another".to_owned(), "root".to_owned());
        assert_eq!(other.read(&with(&value), Millis(2_000)), None);
        assert_eq!(signer.read(&HeaderMap::new(), Millis(0)), None);
        let (admin, _) = signer.issue(None, Millis(0));
        assert_eq!(signer.read(&with(&admin), Millis(1)).expect("valid").key, None);
    }

    #[test]
    fn the_secret_of_the_store_does_not_suffice_to_forge_a_cookie() {
        let signer = Signer::new("secret".to_owned(), "root".to_owned());
        let store_reader = Signer::new("secret".to_owned(), "a guess".to_owned());
        for key in [None, Some("k1")] {
            let (forged, csrf) = store_reader.issue(key, Millis(0));
            assert_eq!(signer.read(&with(&forged), Millis(1)), None, "{key:?}");
            assert_ne!(signer.sign("csrf", &forged), csrf, "{key:?}");
        }
    }

    #[test]
    fn a_mutation_requires_the_csrf_token_and_the_same_origin() {
        let signer = Signer::new("secret".to_owned(), "root".to_owned());
        let (value, csrf) = signer.issue(Some("k1"), Millis(0));
        let signed_in = signer.read(&with(&value), Millis(1)).expect("valid");
        assert!(has_valid_csrf(&headers(&[(CSRF_HEADER, csrf.clone())]), &signed_in));
        assert!(!has_valid_csrf(&HeaderMap::new(), &signed_in));
        assert!(!has_valid_csrf(&headers(&[(CSRF_HEADER, "0".repeat(64))]), &signed_in));
        let cross_site = [(CSRF_HEADER, csrf), ("sec-fetch-site", "cross-site".to_owned())];
        assert!(!has_valid_csrf(&headers(&cross_site), &signed_in));
    }
}
