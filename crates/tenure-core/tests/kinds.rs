//! Invalid declarations are refused, each with its own reason, and all reasons are reported at
//! once.

use tenure_core::kind::{Backoff, InvalidKinds, OperationOverride};
use tenure_core::retry::Retry;
use tenure_core::{Kind, Kinds, LockName, Operation, Policy, RunOptions, limits};

/// Returns a valid kind: a lifecycle with transitional states.
fn good() -> Kind {
    let create = Operation::new("create").path(&["NEW"], "MAKING", "UP", "BROKEN");
    let destroy = Operation::new("destroy").path(&["UP", "BROKEN"], "CLEARING", "NEW", "BROKEN");
    Kind::new("box")
        .states(&["NEW", "MAKING", "UP", "CLEARING", "BROKEN"])
        .operation(create.meets("destroy", Policy::Reject))
        .operation(destroy)
        .backoff(Backoff::Pass)
        .running_max(Some(3), Some(1))
}

fn problems(kinds: impl IntoIterator<Item = Kind>) -> Vec<String> {
    match Kinds::new(kinds) {
        Ok(_) => Vec::new(),
        Err(InvalidKinds(found)) => found,
    }
}

/// Returns the valid kind with a changed operation `create`.
fn with(change: impl FnOnce(&mut Operation)) -> Kind {
    let mut kind = good();
    change(kind.operations.get_mut("create").expect("it is declared"));
    kind
}

/// Asserts that the kind has exactly one problem, at `place` and containing `words`.
#[track_caller]
fn only(kind: Kind, place: &str, words: &str) {
    let found = problems([kind]);
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = format!("{place}: ");
    assert!(found[0].starts_with(&expected) && found[0].contains(words), "{found:?}");
}

#[test]
fn valid_kinds_are_accepted() {
    assert_eq!(problems([good(), Kind::new("empty")]), Vec::<String>::new());
}

#[test]
fn options_of_commands_are_validated() {
    let run = |options: RunOptions| {
        with(|create| {
            (create.run, create.run_options) = (vec!["true".to_owned()], options);
        })
    };
    let place = "kinds.box.operations.create";
    let default = RunOptions::default;
    let at_limit = RunOptions {
        dir: Some("/srv".to_owned()),
        cancel_grace_ms: Some(limits::CANCEL_GRACE_MS_MAX),
        output_file: Some("/var/log/{job}".to_owned()),
        output_bytes_max: Some(1),
    };
    assert_eq!(problems([run(at_limit.clone())]), Vec::<String>::new());
    assert_eq!(problems([with(|create| create.run_options = at_limit.clone())]).len(), 4);
    let dir = Some(String::new());
    only(run(RunOptions { dir, ..default() }), place, "dir is empty");
    let cancel_grace_ms = Some(limits::CANCEL_GRACE_MS_MAX + 1);
    only(run(RunOptions { cancel_grace_ms, ..default() }), place, "at most 1d");
    let output_file = Some("/var/log/{attempt}".to_owned());
    only(run(RunOptions { output_file, ..default() }), place, "must contain {job}");
    let output_bytes_max = Some(1);
    only(run(RunOptions { output_bytes_max, ..default() }), place, "without output_file");
    let output_bytes_max = Some(0);
    only(run(RunOptions { output_bytes_max, ..at_limit }), place, "output_bytes_max of 0");
}

#[test]
fn overrides_are_validated() {
    let own = || OperationOverride { limit_ms: Some(1), retry: Retry::default() };
    let of = |key: &str, operation: &str, own: OperationOverride| {
        good().with_override(key.parse().expect("a good name"), operation, own)
    };
    assert_eq!(problems([of("t/box/b1", "create", own())]), Vec::<String>::new());
    let place = "kinds.box.overrides.t/box/b1";
    only(of("t/box/b1", "paint", own()), place, "the operation paint, which is not declared");
    only(
        of("t/box/b1", "create", OperationOverride { limit_ms: Some(0), ..own() }),
        place,
        "a limit of 0",
    );
    let never = Retry { attempts: 0, ..Retry::default() };
    let never = OperationOverride { retry: never, ..own() };
    only(of("t/box/b1", "create", never), place, "retry.attempts must be between 1 and");
    only(of("t/bin/b1", "create", own()), "kinds.box.overrides.t/bin/b1", "of another kind");
}

#[test]
fn undeclared_state_is_reported_with_the_declared_ones() {
    let place = "kinds.box.operations.create";
    let among = "which is not among NEW, MAKING, UP, CLEARING, BROKEN";
    only(with(|create| create.from.push("NOWHERE".into())), place, among);
    only(with(|create| create.cancelled = Some("NOWHERE".into())), place, among);
    only(with(|create| create.ends.push("NOWHERE".into())), place, "ends names the state NOWHERE");
    let mut kind = good();
    kind.initial = "NOWHERE".into();
    // No state is reachable from there, so every other state is reported as unreachable, too.
    let found = problems([kind]);
    assert!(found[0].contains("initial names the state NOWHERE"), "{found:?}");
}

#[test]
fn duplicate_and_unreachable_states_are_reported() {
    let mut twice = good();
    twice.states.push("UP".into());
    only(twice, "kinds.box", "the state UP is declared twice");
    let mut lost = good();
    lost.states.push("LOST".into());
    only(lost, "kinds.box", "no operation leads to the state LOST");
}

#[test]
fn operation_that_can_never_start_is_reported() {
    let mut kind = good();
    kind.states.push("LOST".into());
    let never = Operation { from: vec!["LOST".into()], ..Operation::new("never") };
    let found = problems([kind.operation(never)]);
    assert!(found.iter().any(|p| p.contains("the operation never can never start")), "{found:?}");
}

#[test]
fn during_state_belongs_to_one_operation_and_has_end_states() {
    let place = "kinds.box.operations.create";
    only(with(|create| create.from.push("MAKING".into())), place, "may start from MAKING");
    only(with(|create| create.ends.push("MAKING".into())), place, "it ends in MAKING");
    let mut found = problems([with(|create| create.failed = None)]);
    assert!(found.remove(0).contains("the states ok and failed must be given too"));
    let mut kind = good();
    let destroy = kind.operations.get_mut("destroy").expect("it is declared");
    destroy.ends.push("MAKING".into());
    only(kind, place, "MAKING is its state during, and destroy ends in it");
}

#[test]
fn operation_that_changes_the_state_needs_the_main_lock() {
    let config: LockName = "config".parse().expect("a lock");
    let kind = with(|create| create.locks = config.into());
    only(kind, "kinds.box.operations.create", "without the lock main");
}

#[test]
fn undeclared_operations_are_reported() {
    let place = "kinds.box.operations.create";
    let kind = with(|create| {
        create.meets.insert("paint".into(), Policy::Attach);
    });
    only(kind, place, "meets names the operation paint");
    only(good().reconcile("paint"), "kinds.box", "reconcile names the operation paint");
}

#[test]
fn zero_limits_and_empty_commands_are_refused() {
    only(good().running_max(Some(0), None), "kinds.box", "a cap of 0 lets nothing run");
    only(good().running_max(None, Some(0)), "kinds.box", "a cap of 0 lets nothing run");
    for ms in [0, limits::LOCK_MAX_AGE_MS_MAX + 1] {
        only(Kind { lock_max_age_ms: Some(ms), ..good() }, "kinds.box", "lock_max_age must be");
    }
    let place = "kinds.box.operations.create";
    only(with(|create| create.limit_ms = Some(0)), place, "a limit of 0 lets no attempt run");
    only(with(|create| create.run = vec![String::new()]), place, "run begins with an empty word");
}

#[test]
fn retry_rule_is_validated() {
    let place = "kinds.box.operations.create";
    let rule = |retry: Retry| with(|create| create.retry = retry);
    let plain = Retry::default;
    let most = limits::ATTEMPTS_MAX;
    only(
        rule(Retry { attempts: 0, ..plain() }),
        place,
        "retry.attempts must be between 1 and 1000",
    );
    only(rule(Retry { attempts: most + 1, ..plain() }), place, "retry.attempts");
    assert_eq!(problems([rule(Retry { attempts: most, ..plain() })]), Vec::<String>::new());
    for factor in [0.99, 100.1, f64::NAN, f64::INFINITY] {
        only(rule(Retry { factor, ..plain() }), place, "retry.factor must be between 1 and 100");
    }
    let long = Retry { initial_ms: 2, max_ms: 1, ..plain() };
    only(rule(long), place, "retry.initial is longer than retry.max");
    let both = Retry { transient: vec!["X".into()], permanent: vec!["X".into()], ..plain() };
    only(rule(both), place, "retry lists X as transient and as permanent");
}

#[test]
fn name_length_and_characters_are_limited() {
    let long = |n: usize| "x".repeat(n);
    assert_eq!(problems([Kind::new(&long(limits::KIND_BYTES_MAX))]), Vec::<String>::new());
    assert_eq!(problems([Kind::new(&long(limits::KIND_BYTES_MAX + 1))]).len(), 1);
    let op = |n| Kind::new("k").operation(Operation::new(&long(n)));
    assert_eq!(problems([op(limits::OPERATION_BYTES_MAX)]), Vec::<String>::new());
    assert_eq!(problems([op(limits::OPERATION_BYTES_MAX + 1)]).len(), 1);
    let state = |n| Kind::new("k").states(&[&long(n)]);
    assert_eq!(problems([state(limits::STATE_BYTES_MAX)]), Vec::<String>::new());
    assert_eq!(problems([state(limits::STATE_BYTES_MAX + 1)]).len(), 1);
    assert_eq!(problems([Kind::new("a/b")]).len(), 1);
}

#[test]
fn number_of_kinds_states_and_operations_is_limited() {
    let kinds = |n: usize| (0..n).map(|n| Kind::new(&format!("k{n}")));
    assert_eq!(problems(kinds(limits::KINDS_MAX)), Vec::<String>::new());
    let found = problems(kinds(limits::KINDS_MAX + 1));
    assert_eq!(found, ["kinds: 1025 kinds; at most 1024 are allowed"]);
    let operations = |n: usize| {
        (0..n).fold(Kind::new("k"), |kind, n| kind.operation(Operation::new(&format!("o{n}"))))
    };
    assert_eq!(problems([operations(limits::OPERATIONS_MAX)]), Vec::<String>::new());
    only(operations(limits::OPERATIONS_MAX + 1), "kinds.k", "65 operations; at most 64");
    let states = |n: usize| {
        let names: Vec<String> = (0..n).map(|n| format!("S{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut anywhere = Operation::new("go");
        anywhere.ends = names.iter().map(|name| (*name).into()).collect();
        Kind::new("k").states(&names).operation(anywhere)
    };
    assert_eq!(problems([states(limits::STATES_MAX)]), Vec::<String>::new());
    only(states(limits::STATES_MAX + 1), "kinds.k", "65 states; at most 64");
}

#[test]
fn duplicate_kind_is_refused() {
    let found = problems([good(), good()]);
    assert_eq!(found, ["kinds.box: it is declared twice"]);
}

#[test]
fn all_problems_of_all_kinds_are_reported_at_once() {
    let mut first = with(|create| {
        create.limit_ms = Some(0);
        create.retry.attempts = 0;
    });
    first.states.push("LOST".into());
    let second = Kind::new("other").reconcile("nothing");
    let error = Kinds::new([first, second]).expect_err("invalid kinds");
    assert_eq!(error.0.len(), 4, "{error}");
    for words in ["limit of 0", "retry.attempts", "the state LOST", "kinds.other: reconcile"] {
        assert!(error.to_string().contains(words), "{words} is missing: {error}");
    }
}
