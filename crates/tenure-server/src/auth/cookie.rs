//! How a browser carries a key: a cookie that names it, signed by servers, good for some hours.
//!
//! The cookie has no secret of the key. It is good for as long as the key is, and asks nothing of
//! the store. A browser also sends it when another site tells it to, so whatever changes something
//! needs a token besides that only our own pages know.

use axum::http::HeaderMap;
use axum::http::header::COOKIE as COOKIE_HEADER;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use tenure_core::Millis;

use super::keys::{hex, same, unhex};

/// The name of the cookie.
pub const COOKIE: &str = "tenure_session";
/// The header that carries the token against forged requests.
const CSRF_HEADER: &str = "x-tenure-csrf";
/// How long a sign-in is good for.
pub(crate) const GOOD_MS: u64 = 12 * 60 * 60 * 1_000;
/// Stands for the admin key, which has no id.
const ROOT: &str = "admin";

/// Signs cookies with what servers share.
pub struct Signer {
    secret: String,
    /// From the admin key, which no store has: whoever reads a store cannot make cookies of it.
    root: String,
}

/// Who is signed in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignedIn {
    /// The id of the key; none for the admin key.
    pub(crate) key: Option<String>,
    /// What must come along with whatever changes something.
    pub(crate) csrf: String,
}

impl Signer {
    /// With what servers share.
    #[must_use]
    pub fn new(secret: String, root: String) -> Self {
        Self { secret, root }
    }

    /// What servers share.
    pub(crate) fn secret(&self) -> &str {
        &self.secret
    }

    /// The value of a cookie for a key, and the token that goes with it.
    pub(crate) fn issue(&self, key: Option<&str>, now: Millis) -> (String, String) {
        let until = now.plus(GOOD_MS).0;
        let nonce = tenure_store::random::request_id();
        let said = format!("{}.{until}.{nonce}", key.unwrap_or(ROOT));
        let value = format!("{said}.{}", self.sign("cookie", &said));
        let csrf = self.sign("csrf", &value);
        (value, csrf)
    }

    /// Who a cookie says is there, if we said so and not too long ago.
    pub(crate) fn read(&self, headers: &HeaderMap, now: Millis) -> Option<SignedIn> {
        let value = cookie(headers)?;
        let (said, signature) = value.rsplit_once('.')?;
        let (expected, presented) = (unhex(&self.sign("cookie", said))?, unhex(signature)?);
        let mut parts = said.split('.');
        let (key, until) = (parts.next()?, parts.next()?.parse::<u64>().ok()?);
        if !same(&expected, &presented) || until <= now.0 {
            return None;
        }
        let key = (key != ROOT).then(|| key.to_owned());
        Some(SignedIn { key, csrf: self.sign("csrf", value) })
    }

    fn sign(&self, use_of_it: &str, text: &str) -> String {
        let root = text.starts_with(&format!("{ROOT}."));
        let use_of_it = if root { format!("{use_of_it} {}", self.root) } else { use_of_it.into() };
        hex(&self.mac(&use_of_it, text))
    }

    /// What only servers can compute.
    pub(crate) fn mac(&self, use_of_it: &str, text: &str) -> [u8; 32] {
        let key = format!("{use_of_it}\n{}", self.secret);
        let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes());
        let mac = mac.expect("a key may have any length").chain_update(text);
        mac.finalize().into_bytes().into()
    }
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(COOKIE_HEADER).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| name.trim() == COOKIE).map(|(_, value)| value.trim())
}

/// Whether a request that changes something comes from our own page.
pub(crate) fn is_ours(headers: &HeaderMap, signed_in: &SignedIn) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let token = text(CSRF_HEADER).and_then(unhex);
    let expected = unhex(&signed_in.csrf);
    let from_elsewhere = text("sec-fetch-site").is_some_and(|site| site != "same-origin");
    !from_elsewhere && token.zip(expected).is_some_and(|(a, b)| same(&a, &b))
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
    fn a_cookie_is_good_for_its_time_and_cannot_be_made_up() {
        let signer = Signer::new("secret".to_owned(), "root".to_owned());
        let (value, csrf) = signer.issue(Some("k1"), Millis(1_000));
        let signed_in = signer.read(&with(&value), Millis(2_000)).expect("it is good");
        assert_eq!(signed_in, SignedIn { key: Some("k1".to_owned()), csrf });
        assert_eq!(signer.read(&with(&value), Millis(1_000 + GOOD_MS)), None, "too late");
        assert_eq!(signer.read(&with(&value.replace("k1", "k2")), Millis(2_000)), None);
        let other = Signer::new("another".to_owned(), "root".to_owned());
        assert_eq!(other.read(&with(&value), Millis(2_000)), None);
        assert_eq!(signer.read(&HeaderMap::new(), Millis(0)), None);
        let (root, _) = signer.issue(None, Millis(0));
        assert_eq!(signer.read(&with(&root), Millis(1)).expect("it is good").key, None);
        let read_in_a_store = Signer::new("secret".to_owned(), "a guess".to_owned());
        assert_eq!(read_in_a_store.read(&with(&root), Millis(1)), None);
    }

    #[test]
    fn only_our_own_pages_know_the_token() {
        let signer = Signer::new("secret".to_owned(), "root".to_owned());
        let (value, csrf) = signer.issue(Some("k1"), Millis(0));
        let signed_in = signer.read(&with(&value), Millis(1)).expect("it is good");
        assert!(is_ours(&headers(&[(CSRF_HEADER, csrf.clone())]), &signed_in));
        assert!(!is_ours(&HeaderMap::new(), &signed_in));
        assert!(!is_ours(&headers(&[(CSRF_HEADER, "0".repeat(64))]), &signed_in));
        let elsewhere = [(CSRF_HEADER, csrf), ("sec-fetch-site", "cross-site".to_owned())];
        assert!(!is_ours(&headers(&elsewhere), &signed_in));
    }
}
