//! Traces across processes: the `traceparent` of W3C Trace Context, which others continue.
//!
//! Nobody has to store anything for it: the trace of a job has the job's id, so all its attempts
//! are in one trace, whoever makes them. Commands find it in `TRACEPARENT` and
//! `TENURE_TRACEPARENT`.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use tenure_core::{JobId, SessionId, Token};

/// The variables in which commands find their [`Parent`].
pub const VARIABLES: [&str; 2] = ["TRACEPARENT", "TENURE_TRACEPARENT"];
/// What the caller's systems say about its trace; it goes with the trace, or not at all.
pub const STATE_VARIABLE: &str = "TRACESTATE";
/// Recorded by whoever is upstream.
const SAMPLED: u8 = 1;

/// A span that others continue, as `00-TRACE-SPAN-FLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parent {
    /// The trace; never zero.
    pub trace: u128,
    /// The span; never zero.
    pub span: u64,
    /// Bit 0 says that it is recorded.
    pub flags: u8,
}

/// A text that is no `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a traceparent is 00-TRACE-SPAN-FLAGS in hexadecimal digits")]
pub struct BadParent;

impl Parent {
    /// The root of all attempts at a job.
    #[must_use]
    pub fn of_job(job: JobId) -> Self {
        Self::derived(job.0, 0)
    }

    /// An attempt at a job, when nobody records it.
    #[must_use]
    pub fn of_attempt(job: JobId, token: Token) -> Self {
        Self::derived(job.0, token.0)
    }

    /// What is done under a lock of a session, when nobody upstream has a trace.
    #[must_use]
    pub fn of_tenure(session: SessionId, token: Token) -> Self {
        Self::derived(session.0, token.0)
    }

    fn derived(id: u128, token: u64) -> Self {
        let halves = [id >> 64, id & u128::from(u64::MAX)];
        let [high, low] = halves.map(|half| u64::try_from(half).expect("it is half of it"));
        // Spread over all bits, so that no two tokens give one span.
        let span = high ^ low.rotate_left(32) ^ token.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self { trace: id.max(1), span: span.max(1), flags: SAMPLED }
    }

    /// The trace that this process was started in, by its environment.
    #[must_use]
    pub fn of_process() -> Option<Self> {
        std::env::var(VARIABLES[0]).ok()?.parse().ok()
    }

    /// The variables for a command.
    #[must_use]
    pub fn variables(self) -> [(OsString, OsString); 2] {
        VARIABLES.map(|name| (name.into(), self.to_string().into()))
    }
}

impl fmt::Display for Parent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl FromStr for Parent {
    type Err = BadParent;

    fn from_str(text: &str) -> Result<Self, BadParent> {
        let mut parts = text.split('-');
        let mut part = |digits: usize| {
            let plain = |c: u8| c.is_ascii_digit() || matches!(c, b'a'..=b'f');
            let fits = |part: &&str| part.len() == digits && part.bytes().all(plain);
            parts.next().filter(fits).ok_or(BadParent)
        };
        let (version, trace, span, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        // Later versions may say more at the end; ff is none.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return Err(BadParent);
        }
        let parent = Self {
            trace: u128::from_str_radix(trace, 16).map_err(|_| BadParent)?,
            span: u64::from_str_radix(span, 16).map_err(|_| BadParent)?,
            flags: u8::from_str_radix(flags, 16).map_err(|_| BadParent)?,
        };
        if parent.trace == 0 || parent.span == 0 { Err(BadParent) } else { Ok(parent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_and_written_as_the_standard_says() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: Parent = text.parse().unwrap();
        assert_eq!((parent.span, parent.flags), (0xb7ad_6b71_6920_3331, 1));
        assert_eq!(parent.to_string(), text);
        assert!(format!("01{}-more", &text[2..]).parse::<Parent>().is_ok(), "a later version");
        let zero_trace = format!("00-{:032}-b7ad6b7169203331-01", 0);
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{:016}-01", 0);
        let upper = text.to_uppercase();
        let (more, version) = (format!("{text}-more"), format!("ff{}", &text[2..]));
        for bad in ["", "00", &text[..54], &more, &version, &zero_trace, &zero_span, &upper] {
            assert_eq!(bad.parse::<Parent>(), Err(BadParent), "{bad}");
        }
    }

    #[test]
    fn all_attempts_at_a_job_are_in_the_trace_that_has_its_id() {
        let job: JobId = "0af7651916cd43dd8448eb211c80319c".parse().unwrap();
        let attempts = [1, 2].map(|token| Parent::of_attempt(job, Token(token)));
        assert!(attempts.iter().all(|one| one.trace == job.0));
        assert_ne!(attempts[0].span, attempts[1].span);
        assert_ne!(attempts[0].span, Parent::of_job(job).span);
        let none = Parent::of_job(JobId(0));
        assert_eq!(none.to_string().parse(), Ok(none), "never the id that means nothing");
    }
}
