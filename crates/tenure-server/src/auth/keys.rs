//! The keys that are known.
//!
//! All of them are in memory, read from the store again and again, so that a request costs no
//! question to the store and goes on being known while the store is away. A key that was made on
//! another server is found at its first use; one that was revoked there is refused within
//! [`REFRESH_EVERY`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tenure_core::session::ALL_TENANTS;
use tenure_core::{Millis, RequestId, Role, Text};
use tenure_store::clock::{Clock, ServerClock, stopwatch};
use tenure_store::{ApiKey, Store, StoreError};
use tokio::sync::Mutex as AsyncMutex;

/// How often keys are read again: this long a key may be good on other servers after it was
/// revoked on one.
pub const REFRESH_EVERY: Duration = Duration::from_secs(2);
/// How soon after a reading an unknown key is reason for another.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How often it is noted which keys were used.
const NOTE_EVERY: Duration = Duration::from_secs(30);
/// What every key begins with, for scanners that look for leaked secrets.
const MARK: &str = "tenure_";

/// A key that is good.
#[derive(Clone, Debug)]
pub struct Principal {
    /// Its id; none for the admin key of the data directory.
    pub key: Option<Text>,
    /// Under this name, for the record.
    pub name: Text,
    /// The tenant it is bound to, or `*`.
    pub tenant: Text,
    /// What it may do.
    pub role: Role,
}

/// The keys that are known. Only their hashes are kept.
pub struct Keys {
    admin: [u8; 32],
    known: RwLock<HashMap<Text, Known>>,
    used: Mutex<HashMap<Text, Millis>>,
    read_at: AsyncMutex<Option<Instant>>,
    clock: ServerClock,
}

struct Known {
    key: ApiKey,
    hash: [u8; 32],
}

impl Keys {
    /// Only the admin key, which acts for any tenant; more are read from the store.
    #[must_use]
    pub fn admin(key: &str) -> Self {
        Self {
            admin: hash(key),
            known: RwLock::default(),
            used: Mutex::default(),
            read_at: AsyncMutex::new(None),
            clock: ServerClock::starting_after(Millis::default()),
        }
    }

    /// Whose a key is, if it is good.
    pub(crate) async fn find(&self, key: &str, store: &dyn Store) -> Option<Principal> {
        let hash = hash(key);
        if same(&self.admin, &hash) {
            return Some(Self::root());
        }
        let id = id(key)?;
        if !self.is_known(id) {
            self.look_again(store).await;
        }
        self.good(id, Some(&hash))
    }

    /// What is derived from the admin key, and does not give it away.
    pub(crate) fn root_mark(&self) -> String {
        hex(&Sha256::digest(self.admin))
    }

    /// The admin key of the data directory.
    pub(crate) fn root() -> Principal {
        let (name, tenant) = ("admin".into(), ALL_TENANTS.into());
        Principal { key: None, name, tenant, role: Role::Admin }
    }

    /// The key of this id, if it is good now and, where a hash is given, of this hash.
    pub(crate) fn good(&self, id: &str, presented: Option<&[u8; 32]>) -> Option<Principal> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let Known { key, hash } = known.get(id)?;
        let now = self.clock.now();
        let fits = presented.is_none_or(|presented| same(hash, presented));
        if !fits || key.revoked_at.is_some() || key.expires_at.is_some_and(|at| at <= now) {
            return None;
        }
        self.uses().insert(key.id.clone(), now);
        let name = format!("{}/{}", key.name, key.id).into();
        let (tenant, role) = (key.tenant.clone(), key.role);
        Some(Principal { key: Some(key.id.clone()), name, tenant, role })
    }

    fn is_known(&self, id: &str) -> bool {
        self.known.read().unwrap_or_else(PoisonError::into_inner).contains_key(id)
    }

    fn uses(&self) -> MutexGuard<'_, HashMap<Text, Millis>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads all keys again.
    pub(crate) async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let mut read_at = self.read_at.lock().await;
        self.read(store, &mut read_at).await
    }

    async fn read(
        &self,
        store: &dyn Store,
        read_at: &mut Option<Instant>,
    ) -> Result<(), StoreError> {
        // Also one that fails is reason enough not to ask again at once.
        *read_at = Some(stopwatch());
        let keys = store.key_ring().all().await?;
        let known = keys.into_iter().filter_map(|key| {
            let hash = unhex(&key.hash)?;
            Some((key.id.clone(), Known { key, hash }))
        });
        let known = known.collect();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// The same, unless it was done a moment ago.
    async fn look_again(&self, store: &dyn Store) {
        let mut read_at = self.read_at.lock().await;
        if read_at.is_some_and(|at| at.elapsed() < LOOK_AGAIN) {
            return;
        }
        if let Err(error) = self.read(store, &mut read_at).await {
            tracing::debug!(%error, "cannot look for a new key");
        }
    }

    /// Reads keys again and notes which ones were used, for as long as it is polled.
    pub(crate) async fn keep_fresh(self: Arc<Self>, store: Arc<dyn Store>) {
        let mut noted = stopwatch();
        let mut away = false;
        loop {
            tokio::time::sleep(REFRESH_EVERY).await;
            match self.refresh(&*store).await {
                Ok(()) => away = false,
                Err(error) if !away => {
                    away = true;
                    tracing::warn!(%error, "cannot read keys again; those that are known stay");
                }
                Err(_) => {}
            }
            if noted.elapsed() > NOTE_EVERY {
                noted = stopwatch();
                self.note_uses(&*store).await;
            }
        }
    }

    /// Notes which keys were used.
    pub(crate) async fn note_uses(&self, store: &dyn Store) {
        let uses: Vec<_> = self.uses().drain().collect();
        if !uses.is_empty()
            && let Err(error) = store.key_ring().record_uses(&uses).await
        {
            tracing::debug!(%error, "cannot note which keys were used");
        }
    }

    /// Wall-clock time, for the ends of keys and cookies.
    pub(crate) fn now(&self) -> Millis {
        self.clock.now()
    }

    /// A new key: what is kept of it, and the key itself, which is shown once.
    pub(crate) fn create(&self, order: Order) -> (ApiKey, String) {
        // Sent again, the same request makes the same id, and so no second key.
        let id = hex(&Sha256::digest(format!("key {}", order.request)));
        let id = &id[..12];
        let secret = tenure_store::random::secret();
        let Order { name, tenant, role, expires_in_ms, by, .. } = order;
        // With its tenant in it, whoever has it need not be told. A header has only ASCII.
        let key = match &*tenant {
            tenant if tenant == ALL_TENANTS || !tenant.is_ascii() => format!("{MARK}{id}_{secret}"),
            tenant => format!("{MARK}{tenant}_{id}_{secret}"),
        };
        let created_at = self.now();
        let kept = ApiKey {
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
        (kept, key)
    }
}

/// What a new key is to be.
pub(crate) struct Order {
    pub(crate) request: RequestId,
    pub(crate) name: Text,
    pub(crate) tenant: Text,
    pub(crate) role: Role,
    pub(crate) expires_in_ms: Option<u64>,
    pub(crate) by: Text,
}

/// The id in a key.
fn id(key: &str) -> Option<&str> {
    let (rest, _) = key.strip_prefix(MARK)?.rsplit_once('_')?;
    Some(rest.rsplit_once('_').map_or(rest, |(_, id)| id))
}

fn hash(key: &str) -> [u8; 32] {
    Sha256::digest(key.as_bytes()).into()
}

/// Compares all bytes whatever they are, so that the time it takes says nothing.
pub(super) fn same(a: &[u8; 32], b: &[u8; 32]) -> bool {
    a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a text takes everything");
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

    fn order(expires_in_ms: Option<u64>) -> Order {
        let (name, tenant, by) = ("ci".into(), "acme".into(), "admin".into());
        let request = tenure_store::random::request_id();
        Order { request, name, tenant, role: Role::Worker, expires_in_ms, by }
    }

    #[tokio::test]
    async fn a_key_is_good_until_it_is_revoked_or_expires() {
        let (store, keys) = (Memory::new(), Keys::admin("the admin key"));
        let (kept, key) = keys.create(order(None));
        let (spent, old) = keys.create(order(Some(0)));
        for kept in [kept.clone(), spent] {
            assert!(store.key_ring().add(kept).await.expect("it is there"));
        }
        let found = keys.find(&key, &store).await.expect("it is found at its first use");
        assert_eq!((&*found.tenant, found.role), ("acme", Role::Worker));
        assert!(keys.find(&old, &store).await.is_none(), "it has expired");
        let wrong = format!("{}0", &key[..key.len() - 1]);
        let wrong = if wrong == key { format!("{}1", &key[..key.len() - 1]) } else { wrong };
        assert!(keys.find(&wrong, &store).await.is_none(), "its id is no secret");
        store.key_ring().revoke(&kept.id, Millis(1), "ann").await.expect("it is there");
        keys.refresh(&store).await.expect("it is there");
        assert!(keys.find(&key, &store).await.is_none(), "it was revoked");
    }

    #[tokio::test]
    async fn nothing_that_could_be_asked_with_is_kept() {
        let keys = Keys::admin("the admin key");
        let (kept, key) = keys.create(order(None));
        let secret = key.rsplit('_').next().expect("it has parts");
        assert_eq!(secret.len(), 64, "256 bits");
        assert!(!format!("{kept:?}").contains(secret));
    }

    #[tokio::test]
    async fn what_was_used_is_noted() {
        let (store, keys) = (Memory::new(), Keys::admin("the admin key"));
        let (kept, key) = keys.create(order(None));
        store.key_ring().add(kept).await.expect("it is there");
        keys.find(&key, &store).await.expect("it is good");
        keys.note_uses(&store).await;
        let all = store.key_ring().all().await.expect("it is there");
        assert!(all[0].used_at.is_some());
    }

    #[test]
    fn hashes_are_read_as_they_are_written() {
        let hash = hash("key");
        assert_eq!(unhex(&hex(&hash)), Some(hash));
        for bad in ["", "zz", &"é".repeat(32), &"0".repeat(63)] {
            assert_eq!(unhex(bad), None, "{bad}");
        }
    }
}
