//! Trace propagation with the `traceparent` of W3C Trace Context.
//!
//! Nothing needs to be stored: the trace id of a job is the job's id, so all its attempts share one
//! trace, whichever worker runs them. Commands find it in `TRACEPARENT` and `TENURE_TRACEPARENT`.

use std::ffi::OsString;
use std::fmt;
use std::str::FromStr;

use tenure_core::{JobId, SessionId, Token};

/// Environment variables that carry the [`TraceParent`] of a command.
pub const TRACEPARENT_VARIABLES: [&str; 2] = ["TRACEPARENT", "TENURE_TRACEPARENT"];
/// Environment variable with vendor-specific trace state; passed on only together with its trace.
pub const TRACESTATE_VARIABLE: &str = "TRACESTATE";
/// Flag: the caller records this trace.
const SAMPLED: u8 = 1;

/// Parent span for spans of other processes, formatted as `00-TRACE-SPAN-FLAGS`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id; never zero.
    pub trace: u128,
    /// Span id; never zero.
    pub span: u64,
    /// Trace flags; bit 0 is `sampled`.
    pub flags: u8,
}

/// Error of parsing a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid traceparent: expected 00-TRACE-SPAN-FLAGS in lowercase hexadecimal")]
pub struct InvalidTraceParent;

impl TraceParent {
    /// Returns the root span of all attempts of a job.
    #[must_use]
    pub fn for_job(job: JobId) -> Self {
        Self::derive(job.0, 0)
    }

    /// Returns the span of an attempt that no tracer records.
    #[must_use]
    pub fn for_attempt(job: JobId, token: Token) -> Self {
        Self::derive(job.0, token.0)
    }

    /// Returns the span of work under a lock of a session, for callers without a trace of their
    /// own.
    #[must_use]
    pub fn for_tenure(session: SessionId, token: Token) -> Self {
        Self::derive(session.0, token.0)
    }

    fn derive(id: u128, token: u64) -> Self {
        let halves = [id >> 64, id & u128::from(u64::MAX)];
        let [high, low] = halves.map(|half| u64::try_from(half).expect("half of 128 bits"));
        // Multiplication spreads the token over all bits, so different tokens give different spans.
        let span = high ^ low.rotate_left(32) ^ token.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Self { trace: id.max(1), span: span.max(1), flags: SAMPLED }
    }

    /// Returns the parent span of this process, from its environment.
    #[must_use]
    pub fn from_env() -> Option<Self> {
        std::env::var(TRACEPARENT_VARIABLES[0]).ok()?.parse().ok()
    }

    /// Returns the environment variables for a command.
    #[must_use]
    pub fn variables(self) -> [(OsString, OsString); 2] {
        TRACEPARENT_VARIABLES.map(|name| (name.into(), self.to_string().into()))
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl FromStr for TraceParent {
    type Err = InvalidTraceParent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceParent> {
        let mut fields = text.split('-');
        let mut field = |digits: usize| {
            let is_hex = |c: u8| c.is_ascii_digit() || matches!(c, b'a'..=b'f');
            let is_valid = |field: &&str| field.len() == digits && field.bytes().all(is_hex);
            fields.next().filter(is_valid).ok_or(InvalidTraceParent)
        };
        let (version, trace, span, flags) = (field(2)?, field(32)?, field(16)?, field(2)?);
        // Later versions may append fields; version ff is invalid.
        if version == "ff" || (version == "00" && fields.next().is_some()) {
            return Err(InvalidTraceParent);
        }
        let parent = Self {
            trace: u128::from_str_radix(trace, 16).map_err(|_| InvalidTraceParent)?,
            span: u64::from_str_radix(span, 16).map_err(|_| InvalidTraceParent)?,
            flags: u8::from_str_radix(flags, 16).map_err(|_| InvalidTraceParent)?,
        };
        if parent.trace == 0 || parent.span == 0 { Err(InvalidTraceParent) } else { Ok(parent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_parsed_and_formatted_as_specified() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent: TraceParent = text.parse().unwrap();
        assert_eq!((parent.span, parent.flags), (0xb7ad_6b71_6920_3331, 1));
        assert_eq!(parent.to_string(), text);
        assert!(format!("01{}-more", &text[2..]).parse::<TraceParent>().is_ok(), "a later version");
        let zero_trace = format!("00-{:032}-b7ad6b7169203331-01", 0);
        let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{:016}-01", 0);
        let upper = text.to_uppercase();
        let (more, version) = (format!("{text}-more"), format!("ff{}", &text[2..]));
        for bad in ["", "00", &text[..54], &more, &version, &zero_trace, &zero_span, &upper] {
            assert_eq!(bad.parse::<TraceParent>(), Err(InvalidTraceParent), "{bad}");
        }
    }

    #[test]
    fn all_attempts_of_a_job_share_the_trace_with_its_id() {
        let job: JobId = "0af7651916cd43dd8448eb211c80319c".parse().unwrap();
        let attempts = [1, 2].map(|token| TraceParent::for_attempt(job, Token(token)));
        assert!(attempts.iter().all(|one| one.trace == job.0));
        assert_ne!(attempts[0].span, attempts[1].span);
        assert_ne!(attempts[0].span, TraceParent::for_job(job).span);
        let none = TraceParent::for_job(JobId(0));
        assert_eq!(none.to_string().parse(), Ok(none), "the all-zero id is invalid");
    }
}
