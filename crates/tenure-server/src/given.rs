//! What a job was given to work with. That never changes, so it is asked of the store once: whoever
//! attaches to a job in a storm of others would otherwise wait for a second turn of the writer, and
//! with it for a flush of those behind him.
//!
//! Only what the store says is remembered. A submit that seems to have made a job may be the second
//! sending of one that came with something else.

use tenure_core::JobId;
use tenure_core::history::digest;
use tenure_store::{Reads, StoreError};

use crate::known::Known;

/// What is remembered: digests, because documents are large.
#[derive(Default)]
pub(crate) struct Given(Known<Option<u128>>);

impl Given {
    /// Whether a job is known to have been given something else than this.
    pub(crate) async fn is_other(
        &self,
        id: JobId,
        args: &str,
        reads: &dyn Reads,
    ) -> Result<bool, StoreError> {
        let given = match self.0.get(id) {
            Some(given) => given,
            None => {
                let Some(shown) = reads.job(id).await? else { return Ok(false) };
                let given = shown.job.args.as_deref().map(digest);
                self.0.note(id, given);
                given
            }
        };
        Ok(given != Some(digest(args)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::{
        Command, Kind, Kinds, Operation, Outcome, RequestId, ResourceAction, ResourceKey, Submit,
    };
    use tenure_store::{Memory, Store};

    use super::*;

    async fn submitted(store: &Memory) -> JobId {
        let kind = Kind::new("job").operation(Operation::new("work"));
        store.declare(Arc::new(Kinds::new([kind]).unwrap())).await.unwrap();
        let ask = Submit {
            request: RequestId(1),
            operation: "work".into(),
            args: Some("{}".into()),
            priority: 0,
            run_at: None,
            by: "ann".into(),
        };
        let key = ResourceKey::new("acme", "job", "a").unwrap();
        let command = Command::Resource { key, action: ResourceAction::Submit(ask) };
        match store.apply(vec![command]).await.unwrap()[..] {
            [Outcome::Submitted { job, .. }] => job,
            ref other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_store_is_asked_once_for_what_a_job_was_given() {
        let (store, empty, given) = (Memory::new(), Memory::new(), Given::default());
        let id = submitted(&store).await;
        assert!(!given.is_other(id, "{}", empty.reads()).await.unwrap(), "nobody knows the job");
        for reads in [store.reads(), empty.reads()] {
            assert!(!given.is_other(id, "{}", reads).await.unwrap());
            assert!(given.is_other(id, r#"{"full":true}"#, reads).await.unwrap());
        }
    }
}
