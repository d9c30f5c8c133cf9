//! A server that was started without its configuration does no harm.

use std::sync::Arc;

use tenure_core::{
    Claim, Command, JobState, Kind, Kinds, Millis, Operation, Outcome, RequestId, ResourceAction,
    ResourceKey, SessionId, Submit, World, step,
};

#[test]
fn job_of_an_undeclared_kind_waits_after_its_worker_expires() {
    let kinds = Kinds::new([Kind::new("task").operation(Operation::new("work"))]);
    let kinds = Arc::new(kinds.expect("valid kinds"));
    let mut world = World::default();
    world.declare(Arc::clone(&kinds), Millis(0));
    let key: ResourceKey = "t/task/t1".parse().expect("a good name");
    let open = |n: u128| Command::Open {
        session: SessionId(n),
        tenant: "t".into(),
        name: "W".into(),
        ttl_ms: 1_000,
    };
    let claim = |n: u128| {
        let (session, request) = (SessionId(n), RequestId(100 + n));
        Command::Claim(Claim {
            session,
            request,
            kinds: vec!["task".into()],
            max: 1,
            tenant: None,
            only: None,
        })
    };
    let submit = Submit {
        request: RequestId(9),
        operation: "work".into(),
        args: None,
        priority: 0,
        run_at: None,
        by: "A".into(),
        precondition: None,
    };
    step(&mut world, &open(1), Millis(0));
    let action = ResourceAction::Submit(submit);
    step(&mut world, &Command::Resource { key: key.clone(), action }, Millis(0));
    let claimed = step(&mut world, &claim(1), Millis(0));
    assert!(matches!(claimed, Outcome::Claimed(jobs) if jobs.len() == 1));
    world.declare(Arc::default(), Millis(1));
    let settle = Command::Lock { key: key.clone(), action: tenure_core::LockAction::Settle };
    assert_eq!(step(&mut world, &settle, Millis(5_000)), Outcome::Settled { ended: 1 });
    assert_eq!(world.records[&key].lane()[0].state, JobState::Queued);
    step(&mut world, &open(2), Millis(5_000));
    assert_eq!(step(&mut world, &claim(2), Millis(5_000)), Outcome::Claimed(Vec::new()));
    // Once its kind is declared again the job runs; the lost attempt counts.
    world.declare(kinds, Millis(5_000));
    let claimed = step(&mut world, &claim(2), Millis(5_000));
    let Outcome::Claimed(jobs) = claimed else { panic!("refused") };
    assert_eq!(jobs[0].job.attempt, 2);
}
