//! Which resources are ready to be worked, and whose turn it is.
//!
//! Claims walk this index and nothing else: idle resources, blocked lanes and jobs that are over
//! are not in it, so they cost nothing. Tenants take turns: the one with the fewest running jobs of
//! the kind goes first, then the one that was served longest ago. Within a tenant the highest
//! priority goes first, then whoever waits longest. Caps count what records say is running; there
//! is no counter that a crash could leave wrong, because the index is made from the records.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::key::{ResourceKey, Text};
use crate::kind::{Kind, Kinds};
use crate::lane::Next;
use crate::map::Map;
use crate::record::Record;
use crate::session::ALL_TENANTS;
use crate::time::Millis;

/// The order of a tenant's ready resources.
type Spot = (Reverse<i32>, Millis, ResourceKey);

/// The ready resources of all kinds.
#[derive(Clone, Debug, Default)]
pub struct Ready {
    kinds: Map<Text, Shelf>,
    /// What the index knows of each resource.
    of: Map<ResourceKey, Known>,
    /// Resources that have to be looked at again at an instant.
    later: BTreeSet<(Millis, ResourceKey)>,
    /// Counts the picks, to know who was served longest ago.
    picks: u64,
}

/// Most tenants of a kind that are remembered without work; when there are more, their turns begin
/// anew.
const SERVED_MAX: usize = 16_384;

/// What the index knows of one resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    spot: Option<(Reverse<i32>, Millis)>,
    later: Option<Millis>,
    running: usize,
}

/// The ready resources of one kind.
#[derive(Clone, Debug, Default)]
struct Shelf {
    running: usize,
    tenants: Map<Text, Line>,
    /// Tenants with something ready: by running jobs, then by when they were last served.
    order: BTreeSet<(usize, u64, Text)>,
    /// When tenants were last served that have nothing now: who comes back a moment later must not
    /// go before those who have waited.
    served: Map<Text, u64>,
}

/// The ready resources of one tenant and kind.
#[derive(Clone, Debug, Default)]
struct Line {
    ready: BTreeSet<Spot>,
    running: usize,
    served: u64,
}

impl Ready {
    /// Looks at a record after it has changed. Says whether it became ready by that.
    pub(crate) fn note(
        &mut self,
        key: &ResourceKey,
        record: &Record,
        kinds: &Kinds,
        now: Millis,
    ) -> bool {
        let known = match (&record.resource, kinds.get(key.kind())) {
            (Some(resource), Some(kind)) if !resource.lane.is_empty() => {
                let (spot, later) = match record.next(kind, now) {
                    Next::Ready { priority, since, later, .. } => {
                        (Some((Reverse(priority), since)), later)
                    }
                    Next::Later(at) => (None, Some(at)),
                    Next::Nothing => (None, None),
                };
                Known { spot, later, running: resource.running() }
            }
            (Some(resource), None) if !resource.lane.is_empty() => {
                Known { running: resource.running(), ..Known::default() }
            }
            _ => Known::default(),
        };
        self.replace(key, known)
    }

    fn replace(&mut self, key: &ResourceKey, known: Known) -> bool {
        let before = self.of.get(key).cloned().unwrap_or_default();
        if before == known {
            return false;
        }
        if let Some(at) = before.later {
            self.later.remove(&(at, key.clone()));
        }
        if let Some(at) = known.later {
            self.later.insert((at, key.clone()));
        }
        if !self.kinds.contains_key(key.kind()) {
            self.kinds.insert(key.kind().into(), Shelf::default());
        }
        let shelf = self.kinds.get_mut(key.kind()).expect("it was put in above");
        shelf.replace(key, &before, &known);
        let became = known.spot.is_some() && before.spot.is_none();
        if known == Known::default() {
            self.of.remove(key);
        } else {
            self.of.insert(key.clone(), known);
        }
        became
    }

    /// A resource of one of these kinds whose turn it is, for a worker of a tenant or of all.
    pub(crate) fn pick(
        &mut self,
        names: &[Text],
        tenant: &str,
        kinds: &Kinds,
    ) -> Option<ResourceKey> {
        let candidates = names.iter().filter_map(|name| {
            let spot = self.kinds.get(name)?.first(tenant, kinds.get(name)?)?;
            Some((spot, name))
        });
        let (spot, name) = candidates.min()?;
        let key = spot.2.clone();
        let name = name.clone();
        self.picks += 1;
        let shelf = self.kinds.get_mut(&name).expect("it was looked at above");
        shelf.serve(key.tenant(), self.picks);
        Some(key)
    }

    /// Takes out the resources that have to be looked at again by now.
    pub(crate) fn due(&mut self, now: Millis) -> Vec<ResourceKey> {
        let mut due = Vec::new();
        while let Some((at, _)) = self.later.first()
            && *at <= now
            && let Some((_, key)) = self.later.pop_first()
        {
            if let Some(known) = self.of.get_mut(&key) {
                known.later = None;
            }
            due.push(key);
        }
        due
    }

    /// The next instant at which a resource has to be looked at again.
    #[must_use]
    pub fn next_due(&self) -> Option<Millis> {
        self.later.first().map(|(at, _)| *at)
    }

    /// How many jobs of a kind run, of all tenants and of one.
    #[must_use]
    pub fn running(&self, kind: &str, tenant: &str) -> (usize, usize) {
        let Some(shelf) = self.kinds.get(kind) else { return (0, 0) };
        (shelf.running, shelf.tenants.get(tenant).map_or(0, |line| line.running))
    }

    /// Leaves out a resource for now, but for what runs on it.
    pub(crate) fn hide(&mut self, key: &ResourceKey) {
        if let Some(known) = self.of.get(key) {
            let running = known.running;
            self.replace(key, Known { running, ..Known::default() });
        }
    }

    /// Whether a resource is ready.
    #[must_use]
    pub fn has(&self, key: &ResourceKey) -> bool {
        self.of.get(key).is_some_and(|known| known.spot.is_some())
    }

    /// How many resources of a kind are ready.
    #[must_use]
    pub fn ready(&self, kind: &str) -> usize {
        let Some(shelf) = self.kinds.get(kind) else { return 0 };
        shelf.tenants.values().map(|line| line.ready.len()).sum()
    }
}

impl Line {
    /// What its place among the tenants depends on, while it has something ready.
    fn rank(&self) -> Option<(usize, u64)> {
        (!self.ready.is_empty()).then_some((self.running, self.served))
    }
}

impl Shelf {
    fn replace(&mut self, key: &ResourceKey, before: &Known, after: &Known) {
        self.running = self.running + after.running - before.running;
        self.with(key.tenant(), |line| {
            line.running = line.running + after.running - before.running;
            if let Some((priority, since)) = before.spot {
                line.ready.remove(&(priority, since, key.clone()));
            }
            if let Some((priority, since)) = after.spot {
                line.ready.insert((priority, since, key.clone()));
            }
        });
    }

    /// Changes a tenant's line and keeps the order of tenants true.
    fn with(&mut self, tenant: &str, change: impl FnOnce(&mut Line)) {
        let name: Text = match self.tenants.get_key_value(tenant) {
            Some((name, _)) => name.clone(),
            None => tenant.into(),
        };
        let line = self.tenants.entry(name.clone()).or_insert_with(|| {
            let served = self.served.remove(&name).unwrap_or(0);
            Line { served, ..Line::default() }
        });
        let before = line.rank();
        change(line);
        let after = line.rank();
        if before != after {
            if let Some((running, served)) = before {
                self.order.remove(&(running, served, name.clone()));
            }
            if let Some((running, served)) = after {
                self.order.insert((running, served, name.clone()));
            }
        }
        if after.is_none() && line.running == 0 {
            let served = line.served;
            self.tenants.remove(&name);
            if self.served.len() >= SERVED_MAX {
                self.served.clear();
            }
            if served > 0 {
                self.served.insert(name, served);
            }
        }
    }

    fn serve(&mut self, tenant: &str, pick: u64) {
        self.with(tenant, |line| line.served = pick);
    }

    fn first(&self, tenant: &str, kind: &Kind) -> Option<&Spot> {
        if kind.running_max.is_some_and(|max| self.running >= max) {
            return None;
        }
        let within = |line: &Line| kind.tenant_running_max.is_none_or(|max| line.running < max);
        if tenant != ALL_TENANTS {
            return self.tenants.get(tenant).filter(|line| within(line))?.ready.first();
        }
        // Tenants are in the order of their running jobs: when the first is at its cap, all are.
        let (_, _, name) = self.order.first()?;
        self.tenants.get(name).filter(|line| within(line))?.ready.first()
    }
}
