//! In-memory cache of the API keys.
//!
//! All keys are read from the store periodically, so authentication costs no read and works while
//! the store is unavailable. A key created on another server is found at its first use; one
//! revoked there is refused within [`REFRESH_INTERVAL`].

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tenure_core::session::ALL_TENANTS;
use tenure_core::{Millis, RequestId, Role, Text};
use tenure_store::clock::{Clock, ServerClock, stopwatch};
use tenure_store::{ApiKey, Store, StoreError};
use tokio::sync::Mutex as AsyncMutex;

use super::cookie::SignedIn;

/// Interval at which keys are read: the maximum time that a revoked key stays valid on other
/// servers.
pub const REFRESH_INTERVAL: Duration = Duration::from_secs(2);
/// Minimum time between two reads that unknown keys cause.
const REFRESH_INTERVAL_MIN: Duration = Duration::from_millis(200);
/// Interval at which the last uses of keys are written to the store.
const USAGE_FLUSH_INTERVAL: Duration = Duration::from_secs(30);
/// Prefix of every key, for scanners of leaked secrets.
const KEY_PREFIX: &str = "tenure_";

/// The identity of a valid key.
#[derive(Clone, Debug)]
pub struct Principal {
    /// Id of the key; `None` for the admin key of the data directory.
    pub key: Option<Text>,
    /// Name for history and the audit log.
    pub name: Text,
    /// Tenant that the key is bound to, or `*`.
    pub tenant: Text,
    /// Role of the key.
    pub role: Role,
}

/// The API keys of a server. Only their hashes are in memory.
pub struct Keys {
    admin: [u8; 32],
    cached: RwLock<HashMap<Text, CachedKey>>,
    used: Mutex<HashMap<Text, Millis>>,
    /// Ids of the cookies that were signed out.
    signed_out: RwLock<HashSet<String>>,
    sync: AsyncMutex<SyncState>,
    clock: ServerClock,
}

/// What is not yet the same in the store.
#[derive(Default)]
struct SyncState {
    /// When keys were last read.
    read_at: Option<Instant>,
    /// Sign-outs that the store did not take.
    unsaved: Vec<SignedIn>,
}

struct CachedKey {
    key: ApiKey,
    hash: [u8; 32],
}

impl Keys {
    /// Creates the cache with the admin key, which acts for any tenant. Other keys are read from
    /// the store.
    #[must_use]
    pub fn admin(key: &str) -> Self {
        Self {
            admin: hash(key),
            cached: RwLock::default(),
            used: Mutex::default(),
            signed_out: RwLock::default(),
            sync: AsyncMutex::default(),
            clock: ServerClock::starting_after(Millis::default()),
        }
    }

    /// Returns the principal of a key, if the key is valid.
    pub(crate) async fn authenticate(&self, key: &str, store: &dyn Store) -> Option<Principal> {
        let hash = hash(key);
        if constant_time_eq(&self.admin, &hash) {
            return Some(Self::admin_principal());
        }
        let id = id(key)?;
        if !self.is_cached(id) {
            self.refresh_if_stale(store).await;
        }
        self.principal(id, Some(&hash))
    }

    /// Ends a cookie: at once on this server, within [`REFRESH_INTERVAL`] on others. If the store
    /// is unavailable, a later refresh records it there.
    pub(crate) async fn sign_out(
        &self,
        signed_in: SignedIn,
        store: &dyn Store,
    ) -> Result<(), StoreError> {
        // Not between a read of the list and its replacement.
        let mut sync = self.sync.lock().await;
        let id = signed_in.id.clone();
        self.signed_out.write().unwrap_or_else(PoisonError::into_inner).insert(id);
        sync.unsaved.push(signed_in);
        self.save_sign_outs(store, &mut sync).await
    }

    /// Records the sign-outs that the store does not have.
    async fn save_sign_outs(
        &self,
        store: &dyn Store,
        sync: &mut SyncState,
    ) -> Result<(), StoreError> {
        let now = self.now();
        sync.unsaved.retain(|signed_in| signed_in.until > now);
        while let Some(SignedIn { id, until, .. }) = sync.unsaved.last() {
            store.key_ring().sign_out(id, *until, now).await?;
            sync.unsaved.pop();
        }
        Ok(())
    }

    /// Returns whether a cookie was signed out.
    pub(crate) fn is_signed_out(&self, id: &str) -> bool {
        self.signed_out.read().unwrap_or_else(PoisonError::into_inner).contains(id)
    }

    /// Returns a digest of the admin key that does not reveal it.
    pub(crate) fn admin_fingerprint(&self) -> String {
        hex(&Sha256::digest(self.admin))
    }

    /// Returns the principal of the admin key of the data directory.
    pub(crate) fn admin_principal() -> Principal {
        let (name, tenant) = ("admin".into(), ALL_TENANTS.into());
        Principal { key: None, name, tenant, role: Role::Admin }
    }

    /// Returns the principal of the key with this id, if the key is valid and its hash is
    /// `presented`, where given.
    pub(crate) fn principal(&self, id: &str, presented: Option<&[u8; 32]>) -> Option<Principal> {
        let cached = self.cached.read().unwrap_or_else(PoisonError::into_inner);
        let CachedKey { key, hash } = cached.get(id)?;
        let now = self.clock.now();
        let matches = presented.is_none_or(|presented| constant_time_eq(hash, presented));
        if !matches || key.revoked_at.is_some() || key.expires_at.is_some_and(|at| at <= now) {
            return None;
        }
        self.uses().insert(key.id.clone(), now);
        let name = format!("{}/{}", key.name, key.id).into();
        let (tenant, role) = (key.tenant.clone(), key.role);
        Some(Principal { key: Some(key.id.clone()), name, tenant, role })
    }

    fn is_cached(&self, id: &str) -> bool {
        self.cached.read().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<Text, Millis>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all keys from the store.
    pub(crate) async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut sync = self.sync.lock().await;
        self.read(store, &mut sync).await
    }

    async fn read(&self, store: &dyn Store, sync: &mut SyncState) -> Result<(), StoreError> {
        // Before the read: a failed one is not repeated at once either.
        sync.read_at = Some(stopwatch());
        if let Err(error) = self.save_sign_outs(store, sync).await {
            tracing::debug!(%error, "cannot record sign-outs; retrying");
        }
        let keys = store.key_ring().all().await?;
        let mut signed_out: HashSet<_> = store.key_ring().signed_out().await?.into_iter().collect();
        signed_out.extend(sync.unsaved.iter().map(|signed_in| signed_in.id.clone()));
        *self.signed_out.write().unwrap_or_else(PoisonError::into_inner) = signed_out;
        let cached = keys.into_iter().filter_map(|key| {
            let hash = unhex(&key.hash)?;
            Some((key.id.clone(), CachedKey { key, hash }))
        });
        let cached = cached.collect();
        *self.cached.write().unwrap_or_else(PoisonError::into_inner) = cached;
        Ok(())
    }

    /// Reads all keys, unless that was done within [`REFRESH_INTERVAL_MIN`].
    async fn refresh_if_stale(&self, store: &dyn Store) {
        let mut sync = self.sync.lock().await;
        if sync.read_at.is_some_and(|at| at.elapsed() < REFRESH_INTERVAL_MIN) {
            return;
        }
        if let Err(error) = self.read(store, &mut sync).await {
            tracing::debug!(%error, "cannot refresh keys for an unknown one");
        }
    }

    /// Refreshes keys and flushes their last uses, periodically and forever.
    pub(crate) async fn run_refresh(self: Arc<Self>, store: Arc<dyn Store>) {
        let mut flushed = stopwatch();
        let mut failing = false;
        loop {
            tokio::time::sleep(REFRESH_INTERVAL).await;
            match self.refresh(&*store).await {
                Ok(()) => failing = false,
                Err(error) if !failing => {
                    failing = true;
                    tracing::warn!(%error, "cannot refresh keys; using the cached ones");
                }
                Err(_) => {}
            }
            if flushed.elapsed() > USAGE_FLUSH_INTERVAL {
                flushed = stopwatch();
                self.flush_usage(&*store).await;
            }
        }
    }

    /// Writes the last uses of keys to the store.
    pub(crate) async fn flush_usage(&self, store: &dyn Store) {
        let uses: Vec<_> = self.uses().drain().collect();
        if !uses.is_empty()
            && let Err(error) = store.key_ring().record_uses(&uses).await
        {
            tracing::debug!(%error, "cannot record the uses of keys");
        }
    }

    /// Returns wall-clock time, for the expiry of keys and cookies.
    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// Generates a key. Returns its record for the store, and the key itself, which is shown once.
    pub(crate) fn create(&self, new_key: NewKey) -> (ApiKey, String) {
        // Derived from the request, so that a repeated request creates no second key.
        let id = hex(&Sha256::digest(format!("key {}", new_key.request)));
        let id = &id[..12];
        let secret = tenure_store::random::secret();
        let NewKey { name, tenant, role, expires_in_ms, by, .. } = new_key;
        // The key names its tenant for its users; not if it is not ASCII, which headers require.
        let key = match &*tenant {
            tenant if tenant == ALL_TENANTS || !tenant.is_ascii() => {
                format!("{KEY_PREFIX}{id}_{secret}")
            }
            tenant => format!("{KEY_PREFIX}{tenant}_{id}_{secret}"),
        };
        let created_at = self.now();
        let stored = ApiKey {
            id: id.into(),
            name,
            tenant,
            role,
            hash: hex(&hash(&key)).into(),
            created_at,
            created_by: by,
            expires_at: expires_in_ms.map(|ms| created_at.plus(ms)),
            used_at: None,
            revoked_at: None,
            revoked_by: None,
        };
        (stored, key)
    }
}

/// Request to create a key.
pub(crate) struct NewKey {
    pub(crate) request: RequestId,
    pub(crate) name: Text,
    pub(crate) tenant: Text,
    pub(crate) role: Role,
    pub(crate) expires_in_ms: Option<u64>,
    pub(crate) by: Text,
}

/// Returns the id in a key.
pub(super) fn id(key: &str) -> Option<&str> {
    let (rest, _) = key.strip_prefix(KEY_PREFIX)?.rsplit_once('_')?;
    Some(rest.rsplit_once('_').map_or(rest, |(_, id)| id))
}

pub(super) fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Compares in constant time.
pub(super) fn constant_time_eq(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use tenure_store::Memory;

    use super::*;

    fn new_key(expires_in_ms: Option<u64>) -> NewKey {
        let (name, tenant, by) = ("ci".into(), "acme".into(), "admin".into());
        let request = tenure_store::random::request_id();
        NewKey { request, name, tenant, role: Role::Worker, expires_in_ms, by }
    }

    #[tokio::test]
    async fn a_key_is_valid_until_it_is_revoked_or_expires() {
        let (store, keys) = (Memory::new(), Keys::admin("the admin key"));
        let (stored, key) = keys.create(new_key(None));
        let (expired, old) = keys.create(new_key(Some(0)));
        for stored in [stored.clone(), expired] {
            assert!(store.key_ring().add(stored).await.expect("in memory"));
        }
        let found = keys.authenticate(&key, &store).await.expect("found at its first use");
        assert_eq!((&*found.tenant, found.role), ("acme", Role::Worker));
        assert!(keys.authenticate(&old, &store).await.is_none(), "expired");
        let wrong = format!("{}0", &key[..key.len() - 1]);
        let wrong = if wrong == key { format!("{}1", &key[..key.len() - 1]) } else { wrong };
        assert!(keys.authenticate(&wrong, &store).await.is_none(), "the id alone does not suffice");
        store.key_ring().revoke(&stored.id, Millis(1), "ann").await.expect("in memory");
        keys.refresh(&store).await.expect("in memory");
        assert!(keys.authenticate(&key, &store).await.is_none(), "revoked");
    }

    #[tokio::test]
    async fn the_stored_record_does_not_contain_the_secret() {
        let keys = Keys::admin("the admin key");
        let (stored, key) = keys.create(new_key(None));
        let secret = key.rsplit('_').next().expect("it has parts");
        assert_eq!(secret.len(), 64, "256 bits");
        assert!(!format!("{stored:?}").contains(secret));
    }

    #[tokio::test]
    async fn the_last_use_of_a_key_is_recorded() {
        let (store, keys) = (Memory::new(), Keys::admin("the admin key"));
        let (stored, key) = keys.create(new_key(None));
        store.key_ring().add(stored).await.expect("in memory");
        keys.authenticate(&key, &store).await.expect("valid");
        keys.flush_usage(&store).await;
        let all = store.key_ring().all().await.expect("in memory");
        assert!(all[0].used_at.is_some());
    }

    #[test]
    fn hex_round_trips_and_rejects_bad_input() {
        let hash = hash("key");
        assert_eq!(unhex(&hex(&hash)), Some(hash));
        for bad in ["", "zz", &"é".repeat(32), &"0".repeat(63)] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
