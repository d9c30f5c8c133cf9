//! Streams of items that are read page by page.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{BoxStream, Stream, StreamExt as _};

use crate::error::Error;

/// Stream of the log chunks of a job or of the history of a resource.
///
/// Ends after the first error. It implements [`Stream`]; [`Items::next`] needs no further crate.
pub struct Items<T>(BoxStream<'static, Result<T, Error>>);

impl<T> Items<T> {
    pub(crate) fn new(stream: impl Stream<Item = Result<T, Error>> + Send + 'static) -> Self {
        Self(stream.boxed())
    }

    /// Returns the next item, or `None` after the last.
    pub async fn next(&mut self) -> Option<Result<T, Error>> {
        self.0.next().await
    }
}

impl<T> Stream for Items<T> {
    type Item = Result<T, Error>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl<T> fmt::Debug for Items<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Items").finish_non_exhaustive()
    }
}
