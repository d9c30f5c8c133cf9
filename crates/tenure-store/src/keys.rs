//! The keys with which people and programs ask, beside the rows of the model.
//!
//! A store keeps them so that all servers on it know the same ones. Only their hashes are kept:
//! whoever reads the store cannot ask with what it finds. Nothing here decides who may do what;
//! that is the server's.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tenure_core::{Millis, Role, Text};

use crate::store::Result;

/// Most keys that a store keeps, revoked ones included.
pub const KEYS_MAX: usize = 10_000;

/// What is kept of a key, as the tables of all stores name it.
pub(crate) const COLUMNS: &str = "id, name, tenant, role, hash, created_at, created_by, \
                                  expires_at, used_at, revoked_at, revoked_by";

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    /// Names the key; no secret.
    pub id: Text,
    /// What people call it.
    pub name: Text,
    /// Whose it is; `*` for all tenants.
    pub tenant: Text,
    /// What it may do.
    pub role: Role,
    /// The hash of the whole key, in hexadecimal digits.
    pub hash: Text,
    /// When it was made.
    pub created_at: Millis,
    /// Who made it.
    pub created_by: Text,
    /// From when on it is not good any more.
    pub expires_at: Option<Millis>,
    /// When it was last used, to within a minute or so.
    pub used_at: Option<Millis>,
    /// When it was taken back.
    pub revoked_at: Option<Millis>,
    /// Who took it back, and why.
    pub revoked_by: Option<Text>,
}

/// Keeps keys. What it answers is durable.
#[async_trait]
pub trait KeyRing: Send + Sync {
    /// All keys, oldest first.
    async fn all(&self) -> Result<Vec<ApiKey>>;

    /// Keeps a new key. Says whether it was kept: not when there are [`KEYS_MAX`] already, or when
    /// its id is taken.
    async fn add(&self, key: ApiKey) -> Result<bool>;

    /// Takes a key back. Says whether there is such a key; one that was taken back before stays as
    /// it is.
    async fn revoke(&self, id: &str, at: Millis, by: &str) -> Result<bool>;

    /// Notes when keys were last used. An earlier time changes nothing.
    async fn used(&self, uses: &[(Text, Millis)]) -> Result<()>;

    /// Something secret that all servers on the store share and nobody else knows; `fresh` if there
    /// was none before.
    async fn secret(&self, fresh: &str) -> Result<String>;
}

/// Keys in memory.
#[derive(Default)]
pub struct MemoryKeys(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    keys: BTreeMap<(Millis, Text), ApiKey>,
    secret: Option<String>,
}

impl MemoryKeys {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn find(&mut self, id: &str) -> Option<&mut ApiKey> {
        self.keys.values_mut().find(|key| *key.id == *id)
    }
}

#[async_trait]
impl KeyRing for MemoryKeys {
    async fn all(&self) -> Result<Vec<ApiKey>> {
        Ok(self.kept().keys.values().cloned().collect())
    }

    async fn add(&self, key: ApiKey) -> Result<bool> {
        let mut kept = self.kept();
        let room = kept.keys.len() < KEYS_MAX && kept.find(&key.id).is_none();
        if room {
            kept.keys.insert((key.created_at, key.id.clone()), key);
        }
        Ok(room)
    }

    async fn revoke(&self, id: &str, at: Millis, by: &str) -> Result<bool> {
        let mut kept = self.kept();
        let Some(key) = kept.find(id) else { return Ok(false) };
        if key.revoked_at.is_none() {
            (key.revoked_at, key.revoked_by) = (Some(at), Some(by.into()));
        }
        Ok(true)
    }

    async fn used(&self, uses: &[(Text, Millis)]) -> Result<()> {
        let mut kept = self.kept();
        for (id, at) in uses {
            if let Some(key) = kept.find(id) {
                key.used_at = key.used_at.max(Some(*at));
            }
        }
        Ok(())
    }

    async fn secret(&self, fresh: &str) -> Result<String> {
        Ok(self.kept().secret.get_or_insert_with(|| fresh.to_owned()).clone())
    }
}
