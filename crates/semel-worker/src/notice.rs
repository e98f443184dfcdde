//! Notices: verified events that report the outcome of a record.
//!
//! A [`Notice`] is trusted: the caller that builds one has verified its sender. [`apply`] resolves
//! the record with the same fenced verb as any other verdict, so an event, a reconciler and a late
//! owner may race, and the first of them decides.

mod wire;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use semel_core::store::Result;
use semel_core::{
    Actor, Code, Completion, Identity, Key, KeyScope, OperationId, Record, Resolution, Resolve,
    Response, State, Store, Unresolved, Verdict,
};

use crate::meters;

/// How often [`apply`] reads the record again when another process changed it.
const MAX_READS: usize = 2;

/// What a verified event reports about a record. The inbox keeps it as JSON until it is settled.
///
/// `Debug` shows neither the key nor the content.
#[derive(Clone, PartialEq, Eq)]
pub struct Notice {
    /// The record that it reports on.
    pub target: NoticeTarget,
    /// The reported outcome.
    pub verdict: NoticeVerdict,
    /// The event as received, possibly truncated.
    pub evidence: Bytes,
}

/// How a notice identifies its record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeTarget {
    /// By the record's id.
    Operation(OperationId),
    /// By the client's key.
    Key {
        /// The tenant of the key.
        tenant: Box<str>,
        /// The key.
        key: Key,
        /// The operations that the sender may report on.
        operations: Vec<Box<str>>,
    },
    /// By the id of the resource that the operation created or was about to create.
    Resource(Box<str>),
}

/// The reported outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeVerdict {
    /// Executed, with success or with a final failure.
    Completed(Response),
    /// Not executed, as the provider states explicitly.
    NotExecuted,
}

/// What [`apply`] did with a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It resolved the unknown record.
    Resolved,
    /// The record was already settled; nothing changed.
    Moot,
    /// It reports an execution of a record that was released as not executed. An operator must
    /// check: the operation may execute twice, or already has.
    Contradicted,
    /// It cannot be applied yet: the record does not exist or is in progress, or the target is
    /// ambiguous.
    Parked,
}

/// The stored bytes are not a notice.
#[derive(Debug, thiserror::Error)]
#[error("the inbox contains a message that is not a notice: {0}")]
pub struct Unreadable(#[from] Box<dyn std::error::Error + Send + Sync>);

impl Notice {
    /// Serializes the notice for the inbox.
    pub fn to_bytes(&self) -> Bytes {
        wire::write(self)
    }

    /// Parses what [`Notice::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`Unreadable`] if the bytes are not a notice.
    pub fn from_bytes(stored: &[u8]) -> std::result::Result<Self, Unreadable> {
        wire::read(stored).map_err(Unreadable)
    }
}

/// Applies a notice to its record, as far as the record's state allows.
///
/// # Errors
/// As in [`store`](semel_core::store). Applying the notice again is safe.
///
/// # Cancellation
/// As for [`Store`].
pub async fn apply<S: Store>(store: &S, source: &str, notice: &Notice) -> Result<Applied> {
    for _ in 0..MAX_READS {
        let record = match find_record(store, &notice.target).await? {
            Match::One(record) => record,
            Match::None => return Ok(Applied::Parked),
            Match::Ambiguous => {
                tracing::warn!(
                    source,
                    "parked an event that matches several records, at least one of them unfinished"
                );
                return Ok(Applied::Parked);
            }
        };
        match (&record.state, &notice.verdict) {
            // The event overtook the owner's completion.
            (State::InProgress(_), _) => return Ok(Applied::Parked),
            (State::Completed(_) | State::Expired { .. }, _)
            | (State::FailedRetryable { .. }, NoticeVerdict::NotExecuted) => {
                return Ok(Applied::Moot);
            }
            (State::FailedRetryable { .. }, NoticeVerdict::Completed(_)) => {
                report_contradiction(source, &record);
                return Ok(Applied::Contradicted);
            }
            (State::Unknown(unresolved), reported) => {
                let (verdict, applied) = verdict(&record, *unresolved, reported);
                let resolve = Resolve {
                    fence: record.fence(),
                    verdict,
                    by: Actor::from(&*format!("webhook:{source}")),
                    evidence: Some(notice.evidence.clone()).filter(|seen| !seen.is_empty()),
                };
                match store.resolve(resolve).await? {
                    Resolution::Applied => {
                        tracing::info!(source, id = %record.id, ?applied, "applied an event");
                        return Ok(applied);
                    }
                    Resolution::Fenced(_) => {}
                }
            }
        }
    }
    Ok(Applied::Parked)
}

/// The verdict that a notice justifies for an unknown record, and the result if the store applies
/// it.
fn verdict(
    record: &Record,
    unresolved: Unresolved,
    reported: &NoticeVerdict,
) -> (Verdict, Applied) {
    match reported {
        NoticeVerdict::Completed(response) => {
            let completion = Completion {
                response: response.clone(),
                resource: None,
            };
            (Verdict::Completed(completion), Applied::Resolved)
        }
        NoticeVerdict::NotExecuted if record.attempt == 1 => {
            let code = Code::from("webhook_not_executed");
            (Verdict::NotExecuted(code), Applied::Resolved)
        }
        // An event does not name an attempt. This one may report on an earlier attempt that was
        // released already, while the current attempt may have executed.
        NoticeVerdict::NotExecuted => {
            let code = Code::from("webhook_not_executed_of_some_attempt");
            let verdict = Verdict::StillUnknown(code, unresolved.reconcile_after);
            (verdict, Applied::Moot)
        }
    }
}

/// The record that a target matches.
enum Match {
    None,
    One(Box<Record>),
    /// Several, and one of them is unfinished: guessing could resolve the wrong payment.
    Ambiguous,
}

impl From<Option<Record>> for Match {
    fn from(found: Option<Record>) -> Self {
        found.map_or(Self::None, |record| Self::One(Box::new(record)))
    }
}

/// Whether the store has a record that a notice may report on.
///
/// # Errors
/// As in [`store`](semel_core::store).
pub async fn is_known<S: Store>(store: &S, target: &NoticeTarget) -> Result<bool> {
    let found = find_record(store, target).await?;
    Ok(!matches!(found, Match::None))
}

async fn find_record<S: Store>(store: &S, target: &NoticeTarget) -> Result<Match> {
    let found = match target {
        NoticeTarget::Operation(id) => store.find(*id).await?,
        NoticeTarget::Resource(id) => store.find_resource(id).await?,
        NoticeTarget::Key {
            tenant,
            key,
            operations,
        } => return find_by_key(store, tenant, key, operations).await,
    };
    Ok(found.into())
}

async fn find_by_key<S: Store>(
    store: &S,
    tenant: &str,
    key: &Key,
    operations: &[Box<str>],
) -> Result<Match> {
    let mut found = BTreeMap::new();
    for operation in operations {
        // No record can have an invalid identity.
        let Ok(identity) = Identity::new(tenant, operation.clone(), key.clone()) else {
            continue;
        };
        for scope in [KeyScope::Operation, KeyScope::Tenant] {
            let record = store
                .find_identity(&identity.clone().scoped(scope))
                .await?
                // A tenant-scoped key may belong to an operation that this sender may not report on.
                .filter(|record| *record.identity.operation() == **operation);
            found.extend(record.map(|record| (record.id, record)));
        }
    }
    let unfinished = found.values().any(|record| match &record.state {
        State::InProgress(_) | State::Unknown(_) => true,
        State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => false,
    });
    if found.len() > 1 && unfinished {
        return Ok(Match::Ambiguous);
    }
    Ok(found.into_values().next_back().into())
}

fn report_contradiction(source: &str, record: &Record) {
    metrics::counter!(meters::names::CONTRADICTED, "source" => source.to_owned()).increment(1);
    tracing::error!(
        source,
        id = %record.id,
        attempt = record.attempt,
        code = record.last_error.as_ref().map(Code::as_str),
        "the provider reports an execution of a record that was released as not executed; \
         a retry may execute it twice: check the record and the provider now"
    );
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notice")
            .field("target", &self.target)
            .field("verdict", &self.verdict)
            .field("evidence_bytes", &self.evidence.len())
            .finish()
    }
}
