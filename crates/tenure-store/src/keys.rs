//! API keys, stored next to the rows of the model.
//!
//! They are in the store so that all servers share them. Only hashes are stored, so read access to
//! the store does not reveal a usable key. Authorization is up to the server.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tenure_core::{Millis, Role, Text};

use crate::store::Result;

/// Maximum number of keys in a store, including revoked ones.
pub const KEYS_MAX: usize = 10_000;

/// Columns of a key, with the same names in every store.
pub(crate) const COLUMNS: &str = "id, name, tenant, role, hash, created_at, created_by, \
                                  expires_at, used_at, revoked_at, revoked_by";

/// API key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// Public identifier.
    pub id: Text,
    /// Display name.
    pub name: Text,
    /// Tenant; `*` for all tenants.
    pub tenant: Text,
    /// Role.
    pub role: Role,
    /// Hash of the whole key, in hexadecimal digits.
    pub hash: Text,
    /// Time of creation.
    pub created_at: Millis,
    /// Principal that created it.
    pub created_by: Text,
    /// Time after which it is invalid.
    pub expires_at: Option<Millis>,
    /// Time of the last use, accurate to about a minute.
    pub used_at: Option<Millis>,
    /// Time of revocation.
    pub revoked_at: Option<Millis>,
    /// Principal that revoked it, and why.
    pub revoked_by: Option<Text>,
}

/// Storage of API keys. Changes are durable when a method returns.
#[async_trait]
pub trait KeyRing: Send + Sync {
    /// Lists all keys, oldest first.
    async fn all(&self) -> Result<Vec<ApiKey>>;

    /// Adds a key. Returns `false` if there are [`KEYS_MAX`] keys already or the id is taken.
    async fn add(&self, key: ApiKey) -> Result<bool>;

    /// Revokes a key. Returns `false` if there is no such key. Revoking twice keeps the first
    /// revocation.
    async fn revoke(&self, id: &str, at: Millis, by: &str) -> Result<bool>;

    /// Records the last use of keys. An earlier time changes nothing.
    async fn record_uses(&self, uses: &[(Text, Millis)]) -> Result<()>;

    /// Returns the secret shared by all servers of the store, after storing `candidate` if there is
    /// none yet.
    async fn get_or_set_secret(&self, candidate: &str) -> Result<String>;

    /// Records that a cookie was signed out, and forgets those that have expired by `now`. `until`
    /// is when the cookie expires.
    async fn sign_out(&self, cookie: &str, until: Millis, now: Millis) -> Result<()>;

    /// Lists the cookies that were signed out.
    async fn signed_out(&self) -> Result<Vec<String>>;
}

/// Prefix of the names under which stores keep signed-out cookies, next to the secret.
pub(crate) const SIGNED_OUT: &str = "signed_out/";

/// [`KeyRing`] in memory.
#[derive(Default)]
pub struct MemoryKeys(Mutex<State>);

#[derive(Default)]
struct State {
    keys: BTreeMap<(Millis, Text), ApiKey>,
    secret: Option<String>,
    signed_out: BTreeMap<String, Millis>,
}

impl MemoryKeys {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn find(&mut self, id: &str) -> Option<&mut ApiKey> {
        self.keys.values_mut().find(|key| *key.id == *id)
    }
}

#[async_trait]
impl KeyRing for MemoryKeys {
    async fn all(&self) -> Result<Vec<ApiKey>> {
        Ok(self.state().keys.values().cloned().collect())
    }

    async fn add(&self, key: ApiKey) -> Result<bool> {
        let mut state = self.state();
        let accepted = state.keys.len() < KEYS_MAX && state.find(&key.id).is_none();
        if accepted {
            state.keys.insert((key.created_at, key.id.clone()), key);
        }
        Ok(accepted)
    }

    async fn revoke(&self, id: &str, at: Millis, by: &str) -> Result<bool> {
        let mut state = self.state();
        let Some(key) = state.find(id) else { return Ok(false) };
        if key.revoked_at.is_none() {
            (key.revoked_at, key.revoked_by) = (Some(at), Some(by.into()));
        }
        Ok(true)
    }

    async fn record_uses(&self, uses: &[(Text, Millis)]) -> Result<()> {
        let mut state = self.state();
        for (id, at) in uses {
            if let Some(key) = state.find(id) {
                key.used_at = key.used_at.max(Some(*at));
            }
        }
        Ok(())
    }

    async fn get_or_set_secret(&self, candidate: &str) -> Result<String> {
        Ok(self.state().secret.get_or_insert_with(|| candidate.to_owned()).clone())
    }

    async fn sign_out(&self, cookie: &str, until: Millis, now: Millis) -> Result<()> {
        let mut state = self.state();
        state.signed_out.retain(|_, until| *until > now);
        state.signed_out.insert(cookie.to_owned(), until);
        Ok(())
    }

    async fn signed_out(&self) -> Result<Vec<String>> {
        Ok(self.state().signed_out.keys().cloned().collect())
    }
}
