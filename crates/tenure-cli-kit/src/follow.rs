//! Following something until it is over: a restart of the server is survived, and whoever stops
//! following leaves it alone.
//!
//! What is looked at and how it is shown is that of a [`Follower`]: `job/follow.rs` has that of
//! jobs, `pipeline/follow.rs` that of runs.

use std::time::Duration;

use tenure::Error;
use tokio::signal::unix::Signal;

/// How often it is looked at; its end is told at once.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How often a progress bar is redrawn while nothing changes.
pub const TICK: Duration = Duration::from_millis(120);
/// How often a server is asked again that does not answer, and how long is rested in between:
/// a restart is survived.
const OUTAGE_TRIES: u32 = 120;
const OUTAGE_PAUSE: Duration = Duration::from_millis(500);

/// Whoever follows something and shows what happens to it.
pub trait Follower {
    /// What is followed, for people.
    const WHAT: &'static str;
    /// How it is when it is over.
    type Over;

    /// Looks at it, waiting so long for its end, and shows it; gives how it is when it is over.
    fn look(&mut self, wait: Duration) -> impl Future<Output = anyhow::Result<Option<Self::Over>>>;

    /// Says something beside what is shown.
    fn say(&self, line: &str);
}

/// Shows what happens until it is over, and gives how it ended. Nothing when `interrupt` came
/// first.
pub async fn follow<F: Follower>(
    mut follower: F,
    mut interrupt: Signal,
) -> anyhow::Result<Option<F::Over>> {
    tokio::select! {
        over = watch(&mut follower, OUTAGE_PAUSE) => over.map(Some),
        _ = interrupt.recv() => Ok(None),
    }
}

async fn watch<F: Follower>(follower: &mut F, outage_pause: Duration) -> anyhow::Result<F::Over> {
    let (mut wait, mut outages) = (Duration::ZERO, 0);
    loop {
        match follower.look(wait).await {
            Ok(Some(over)) => return Ok(over),
            Ok(None) => (wait, outages) = (LOOK_EVERY, 0),
            Err(error) if is_outage(&error) && outages < OUTAGE_TRIES => {
                if outages == 0 {
                    let what = F::WHAT;
                    let line = format!("{error}; asking again, the {what} does not depend on it");
                    follower.say(&line);
                }
                outages += 1;
                tokio::time::sleep(outage_pause).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_outage(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(Error::is_unavailable)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    /// Sees what it was given, one after the other.
    struct Seeing {
        looks: VecDeque<Look>,
        said: RefCell<Vec<String>>,
    }

    #[derive(Clone, Copy)]
    enum Look {
        Away,
        GoesOn,
        Over,
        Wrong,
    }

    impl Seeing {
        fn new(parts: &[(u32, Look)]) -> Self {
            let each = |&(n, look): &(u32, Look)| (0..n).map(move |_| look);
            Self { looks: parts.iter().flat_map(each).collect(), said: RefCell::default() }
        }

        async fn watch(&mut self) -> anyhow::Result<()> {
            watch(self, Duration::ZERO).await
        }
    }

    impl Follower for Seeing {
        const WHAT: &'static str = "thing";
        type Over = ();

        async fn look(&mut self, _: Duration) -> anyhow::Result<Option<()>> {
            match self.looks.pop_front().expect("nobody looks behind the end") {
                Look::Away => Err(Error::Unavailable("away".to_owned()).into()),
                Look::GoesOn => Ok(None),
                Look::Over => Ok(Some(())),
                Look::Wrong => Err(Error::NotFound("none".to_owned()).into()),
            }
        }

        fn say(&self, line: &str) {
            self.said.borrow_mut().push(line.to_owned());
        }
    }

    #[tokio::test]
    async fn a_server_that_is_away_is_asked_again_up_to_the_bound() {
        let away = (OUTAGE_TRIES, Look::Away);
        // What it said in between counts anew.
        let mut seeing = Seeing::new(&[away, (1, Look::GoesOn), away, (1, Look::Over)]);
        seeing.watch().await.unwrap();
        assert_eq!(seeing.said.borrow().len(), 2, "said once for each outage");
        assert!(seeing.said.borrow()[0].ends_with("asking again, the thing does not depend on it"));
        let mut seeing = Seeing::new(&[away, (1, Look::Away), (1, Look::Over)]);
        assert!(is_outage(&seeing.watch().await.unwrap_err()));
    }

    #[tokio::test]
    async fn what_is_no_outage_ends_it() {
        let mut seeing = Seeing::new(&[(1, Look::Wrong), (1, Look::Over)]);
        assert!(seeing.watch().await.is_err());
        assert!(seeing.said.borrow().is_empty());
    }
}
