//! Reads request bodies, within a budget for all of them.
//!
//! Each body has a maximum size of its own. Ten thousand connections that send most of it and then
//! nothing would still fill the memory, so the buffers of all bodies that are being read share a
//! budget. What arrived in one piece needs no buffer here, and small bodies are bounded by the
//! number of connections: neither uses the budget. So heartbeats, renewals and releases are never
//! refused because of half-sent bodies of others.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::Problem;

/// Default maximum size of the buffers of all bodies that are being read.
pub const BODIES_BYTES_MAX: usize = 256 * 1024 * 1024;
/// Size of a body up to which it does not count.
const SMALL_BODY_BYTES_MAX: usize = 16 * 1024;
/// Unit of the budget.
const UNIT_BYTES: usize = 1024;
/// Maximum time that a body waits for a part of the budget.
const BUDGET_WAIT_MAX: Duration = Duration::from_millis(500);

/// Reads bodies.
pub struct BodyReader {
    timeout: Duration,
    /// Units that are left.
    budget: Arc<Semaphore>,
}

/// A body, and its part of the budget.
pub struct ReadBody {
    /// The body.
    pub bytes: Bytes,
    /// Returned when it is dropped.
    _reserved: Option<OwnedSemaphorePermit>,
}

/// A buffer whose capacity is reserved from the budget.
struct Buffer<'a> {
    reader: &'a BodyReader,
    bytes: Vec<u8>,
    reserved: Option<OwnedSemaphorePermit>,
}

impl BodyReader {
    /// Creates a reader. A body has to arrive within `timeout`; the buffers of all bodies have at
    /// most `bodies_bytes_max`.
    #[must_use]
    pub fn new(timeout: Duration, bodies_bytes_max: usize) -> Self {
        Self { timeout, budget: Arc::new(Semaphore::new(bodies_bytes_max / UNIT_BYTES)) }
    }

    /// Returns the maximum time that a body may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Reads a body of at most `bytes_max`.
    pub async fn read(&self, body: Body, bytes_max: usize) -> Result<ReadBody, Problem> {
        let timeout = self.timeout;
        match tokio::time::timeout(timeout, self.collect(body, bytes_max)).await {
            Ok(read) => read,
            Err(_) => {
                let detail = format!("the body did not arrive within {timeout:?}; retry");
                Err(Problem::new(408, "timeout", &detail))
            }
        }
    }

    async fn collect(&self, mut body: Body, bytes_max: usize) -> Result<ReadBody, Problem> {
        let declared = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        if declared > bytes_max {
            return Err(unreadable(bytes_max));
        }
        let first = next_piece(&mut body, bytes_max).await?.unwrap_or_default();
        if first.len() <= bytes_max && body.is_end_stream() {
            return Ok(ReadBody { bytes: first, _reserved: None });
        }
        let mut buffer = Buffer { reader: self, bytes: Vec::new(), reserved: None };
        buffer.append(&first, bytes_max).await?;
        while let Some(piece) = next_piece(&mut body, bytes_max).await? {
            buffer.append(&piece, bytes_max).await?;
        }
        Ok(ReadBody { bytes: buffer.bytes.into(), _reserved: buffer.reserved })
    }

    /// Reserves a part of the budget. Waits a moment: bodies that arrive give theirs back.
    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Problem> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let permit = Arc::clone(&self.budget).acquire_many_owned(units);
        match tokio::time::timeout(BUDGET_WAIT_MAX.min(self.timeout), permit).await {
            Ok(Ok(permit)) => Ok(permit),
            // The semaphore is never closed.
            Ok(Err(_)) | Err(_) => Err(Problem::unavailable(
                "the server is receiving more request bodies than it has memory for; retry",
            )),
        }
    }
}

impl Buffer<'_> {
    /// Appends a piece. The capacity doubles, and is reserved before it is allocated.
    async fn append(&mut self, piece: &[u8], bytes_max: usize) -> Result<(), Problem> {
        let size = self.bytes.len() + piece.len();
        if size > bytes_max {
            return Err(unreadable(bytes_max));
        }
        let capacity = self.bytes.capacity();
        if size > capacity {
            let grown = size.max(capacity * 2).min(bytes_max);
            if grown > SMALL_BODY_BYTES_MAX {
                let reserved = self.reserved.as_ref().map_or(0, |permit| permit.num_permits());
                let missing = grown.saturating_sub(reserved * UNIT_BYTES);
                let more = self.reader.reserve(missing).await?;
                match &mut self.reserved {
                    Some(reserved) => reserved.merge(more),
                    none => *none = Some(more),
                }
            }
            self.bytes.reserve_exact(grown - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }
}

/// Returns the next piece of a body; `None` at its end.
async fn next_piece(body: &mut Body, bytes_max: usize) -> Result<Option<Bytes>, Problem> {
    loop {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await;
        let Some(frame) = frame else { return Ok(None) };
        let frame = frame.map_err(|_| unreadable(bytes_max))?;
        // Trailers are ignored.
        if let Ok(piece) = frame.into_data() {
            return Ok(Some(piece));
        }
    }
}

fn unreadable(bytes_max: usize) -> Problem {
    let detail = format!("the body is truncated or has more than {bytes_max} bytes");
    Problem::new(413, "too_large", &detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 64 * 1024;

    fn reader(bytes: usize) -> BodyReader {
        BodyReader::new(Duration::from_secs(30), bytes)
    }

    #[tokio::test]
    async fn a_body_in_one_piece_uses_no_budget() {
        let body = Body::from(vec![b'x'; LARGE]);
        let read = reader(0).read(body, LARGE).await.expect("read");
        assert_eq!(read.bytes.len(), LARGE);
        assert!(reader(0).read(Body::from(vec![b'x'; LARGE + 1]), LARGE).await.is_err());
    }

    #[tokio::test]
    async fn a_buffer_returns_its_reservation_when_the_body_is_dropped() {
        let reader = reader(LARGE);
        let mut buffer = Buffer { reader: &reader, bytes: Vec::new(), reserved: None };
        let left = || reader.budget.available_permits() * UNIT_BYTES;
        buffer.append(&[0; SMALL_BODY_BYTES_MAX], LARGE).await.expect("small");
        assert_eq!(left(), LARGE, "a small body does not count");
        buffer.append(&[0; 1], LARGE).await.expect("within the budget");
        assert_eq!(left(), LARGE - 2 * SMALL_BODY_BYTES_MAX, "the capacity counts");
        buffer.append(&[0; LARGE / 2], LARGE).await.expect("within the budget");
        assert_eq!(left(), 0);
        assert!(buffer.append(&[0; LARGE / 2], LARGE).await.is_err(), "too large");
        drop(buffer);
        assert_eq!(left(), LARGE);
    }
}
