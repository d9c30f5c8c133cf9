//! Follows a job or a run until it finishes, across restarts of the server. An interrupt ends the
//! following, not the job.
//!
//! A [`Follower`] polls one kind of object and displays it: the CLI has one for jobs, and
//! apps have their own.

use std::time::Duration;

use tenure::Error;
use tokio::signal::unix::Signal;

/// Interval between two polls. The server answers earlier when the object finishes.
const POLL_INTERVAL: Duration = Duration::from_millis(300);
/// Interval at which a progress bar is redrawn while nothing changes.
pub const TICK: Duration = Duration::from_millis(120);
/// Maximum number of consecutive retries while the server is unavailable, and the backoff between
/// them: long enough for a restart.
const OUTAGE_RETRIES_MAX: u32 = 120;
const OUTAGE_BACKOFF: Duration = Duration::from_millis(500);

/// Polls and displays one object.
pub trait Follower {
    /// The noun for the object in messages.
    const WHAT: &'static str;
    /// The object once it has finished.
    type Finished;

    /// Reads the object, waiting up to `wait` for it to finish, and displays it. Returns it once it
    /// has finished.
    fn poll(
        &mut self,
        wait: Duration,
    ) -> impl Future<Output = anyhow::Result<Option<Self::Finished>>>;

    /// Prints a message without disturbing the display.
    fn say(&self, line: &str);
}

/// Follows an object until it finishes, and returns it. Returns `None` if `interrupt` comes first.
pub async fn follow<F: Follower>(
    mut follower: F,
    mut interrupt: Signal,
) -> anyhow::Result<Option<F::Finished>> {
    tokio::select! {
        finished = poll_until_finished(&mut follower, OUTAGE_BACKOFF) => finished.map(Some),
        _ = interrupt.recv() => Ok(None),
    }
}

async fn poll_until_finished<F: Follower>(
    follower: &mut F,
    outage_backoff: Duration,
) -> anyhow::Result<F::Finished> {
    let (mut wait, mut outages) = (Duration::ZERO, 0);
    loop {
        match follower.poll(wait).await {
            Ok(Some(finished)) => return Ok(finished),
            Ok(None) => (wait, outages) = (POLL_INTERVAL, 0),
            Err(error) if is_outage(&error) && outages < OUTAGE_RETRIES_MAX => {
                if outages == 0 {
                    let what = F::WHAT;
                    follower.say(&format!("{error}; retrying, the {what} is not affected"));
                }
                outages += 1;
                tokio::time::sleep(outage_backoff).await;
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

    /// Returns scripted poll results.
    struct ScriptedFollower {
        polls: VecDeque<PollResult>,
        messages: RefCell<Vec<String>>,
    }

    #[derive(Clone, Copy)]
    enum PollResult {
        Unavailable,
        Unfinished,
        Finished,
        NotFound,
    }

    impl ScriptedFollower {
        fn new(parts: &[(u32, PollResult)]) -> Self {
            let each = |&(n, result): &(u32, PollResult)| (0..n).map(move |_| result);
            Self { polls: parts.iter().flat_map(each).collect(), messages: RefCell::default() }
        }

        async fn run(&mut self) -> anyhow::Result<()> {
            poll_until_finished(self, Duration::ZERO).await
        }
    }

    impl Follower for ScriptedFollower {
        const WHAT: &'static str = "thing";
        type Finished = ();

        async fn poll(&mut self, _: Duration) -> anyhow::Result<Option<()>> {
            match self.polls.pop_front().expect("no poll after the last result") {
                PollResult::Unavailable => Err(Error::Unavailable("down".to_owned()).into()),
                PollResult::Unfinished => Ok(None),
                PollResult::Finished => Ok(Some(())),
                PollResult::NotFound => Err(Error::NotFound("none".to_owned()).into()),
            }
        }

        fn say(&self, line: &str) {
            self.messages.borrow_mut().push(line.to_owned());
        }
    }

    #[tokio::test]
    async fn an_unavailable_server_is_retried_up_to_the_limit() {
        let outage = (OUTAGE_RETRIES_MAX, PollResult::Unavailable);
        let (unfinished, finished) = ((1, PollResult::Unfinished), (1, PollResult::Finished));
        // A successful poll resets the count.
        let mut follower = ScriptedFollower::new(&[outage, unfinished, outage, finished]);
        follower.run().await.unwrap();
        assert_eq!(follower.messages.borrow().len(), 2, "one message per outage");
        assert!(follower.messages.borrow()[0].ends_with("retrying, the thing is not affected"));
        let mut follower = ScriptedFollower::new(&[outage, (1, PollResult::Unavailable), finished]);
        assert!(is_outage(&follower.run().await.unwrap_err()));
    }

    #[tokio::test]
    async fn other_errors_end_the_following() {
        let mut follower =
            ScriptedFollower::new(&[(1, PollResult::NotFound), (1, PollResult::Finished)]);
        assert!(follower.run().await.is_err());
        assert!(follower.messages.borrow().is_empty());
    }
}
