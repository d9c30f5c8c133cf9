//! Sessions across interruptions of the store: who is renewed after a stall or a restart, and how
//! the tenures of ended sessions are settled.

use crate::canary::{Canary, planted};
use crate::command::{Command, LockAction};
use crate::engine::step;
use crate::id::SessionId;
use crate::key::ResourceKey;
use crate::limits::STALL_MS;
use crate::outcome::Outcome;
use crate::session::Session;
use crate::time::Millis;
use crate::world::World;

/// What settling an ended session has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionSettlement {
    /// Number of resources that were settled.
    pub resources: usize,
    /// Number of tenures that ended.
    pub tenures: usize,
    /// Whether the session holds nothing any more; its row is removed.
    pub done: bool,
}

impl Session {
    /// Renews the session after a restart of the store, by exactly one time to live: a stored
    /// expiry may be far in the future if the wall clock was set back, and would keep the locks of
    /// a dead process until then.
    pub fn renew_after_restart(&mut self, now: Millis) {
        if !planted(Canary::NoGraceAfterRestart) && self.ended.is_none() {
            self.expires_at = self.expiry_from(now);
        }
    }
}

impl World {
    /// Renews every live session if the store was inactive for longer than [`STALL_MS`]: no holder
    /// may lose a lock because the *store* was stopped, starved or suspended. Returns whether it
    /// did.
    pub fn renew_after_stall(&mut self, last_active: Option<Millis>, now: Millis) -> bool {
        let stalled = last_active.is_some_and(|last| now.since(last) > STALL_MS);
        if stalled {
            self.sessions.grant_grace(now);
        }
        stalled
    }

    /// Settles up to `max` resources of an ended session, except those that `is_excluded` names,
    /// and removes its row once it holds and waits for nothing. Returns `None` if the session is
    /// alive.
    pub fn settle_session(
        &mut self,
        id: SessionId,
        max: usize,
        now: Millis,
        is_excluded: impl Fn(&ResourceKey) -> bool,
    ) -> Option<SessionSettlement> {
        if self.sessions.get(id).is_some_and(|session| session.ended.is_none()) {
            return None;
        }
        let keys: Vec<_> = self.session_index.resources_of(id).take(max).cloned().collect();
        let resources = keys.len();
        let settle = |key: ResourceKey| self.settle_resource(key, now);
        let tenures = keys.into_iter().filter(|key| !is_excluded(key)).map(settle).sum();
        let done = !self.session_index.contains(id);
        if done {
            step(self, &Command::Forget { session: id }, now);
        }
        Some(SessionSettlement { resources, tenures, done })
    }

    /// Settles one resource. Returns the number of tenures that ended.
    pub fn settle_resource(&mut self, key: ResourceKey, now: Millis) -> usize {
        let command = Command::Lock { key, action: LockAction::Settle };
        match step(self, &command, now) {
            Outcome::Settled { ended } => ended,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Acquire, Claimant};
    use crate::id::RequestId;
    use crate::key::LockName;

    const SESSION: SessionId = SessionId(1);

    fn world(locks: u128) -> World {
        let mut world = World::default();
        let (tenant, name) = ("t".into(), "a".into());
        let open = Command::Open { session: SESSION, tenant, name, ttl_ms: 10_000 };
        step(&mut world, &open, Millis(0));
        for n in 0..locks {
            let acquire = Acquire {
                locks: LockName::main().into(),
                claimant: Claimant::Session(SESSION),
                request: RequestId(n + 1),
                wait_ms: 0,
                purpose: None,
                max_age_ms: None,
                tenant: None,
            };
            let key = ResourceKey::new("t", "k", &format!("r{n}")).unwrap();
            let action = LockAction::Acquire(acquire);
            let outcome = step(&mut world, &Command::Lock { key, action }, Millis(0));
            assert!(matches!(outcome, Outcome::Granted(_)), "{outcome:?}");
        }
        world
    }

    fn expires_at(world: &World) -> Millis {
        world.sessions.get(SESSION).unwrap().expires_at
    }

    #[test]
    fn sessions_are_renewed_only_after_a_stall() {
        let mut world = world(0);
        let before = expires_at(&world);
        assert!(!world.renew_after_stall(None, Millis(9_000)));
        assert!(!world.renew_after_stall(Some(Millis(9_000 - STALL_MS)), Millis(9_000)));
        assert_eq!(expires_at(&world), before);
        assert!(world.renew_after_stall(Some(Millis(8_999 - STALL_MS)), Millis(9_000)));
        assert_eq!(expires_at(&world), Millis(19_000));
    }

    #[test]
    fn a_restart_renews_by_one_time_to_live_and_never_revives() {
        let mut session = world(0).sessions.get(SESSION).unwrap().clone();
        session.expires_at = Millis(9_000_000);
        session.renew_after_restart(Millis(5_000));
        assert_eq!(session.expires_at, Millis(15_000));
        session.ended = Some(crate::session::SessionEnd::Closed);
        session.renew_after_restart(Millis(50_000));
        assert_eq!(session.expires_at, Millis(15_000));
    }

    #[test]
    fn an_ended_session_is_removed_once_nothing_of_it_is_left() {
        let mut world = world(3);
        assert_eq!(world.settle_session(SESSION, 9, Millis(1), |_| false), None, "it is alive");
        step(&mut world, &Command::Close { session: SESSION, tenant: None }, Millis(1));
        let first = world.settle_session(SESSION, 2, Millis(1), |_| false).unwrap();
        assert_eq!(first, SessionSettlement { resources: 2, tenures: 2, done: false });
        // An excluded resource keeps the session.
        let second = world.settle_session(SESSION, 2, Millis(1), |_| true).unwrap();
        assert_eq!(second, SessionSettlement { resources: 1, tenures: 0, done: false });
        let third = world.settle_session(SESSION, 2, Millis(1), |_| false).unwrap();
        assert_eq!(third, SessionSettlement { resources: 1, tenures: 1, done: true });
        assert!(world.sessions.get(SESSION).is_none());
    }
}
