//! What an event from elsewhere says of an operation, and what is made of it.
//!
//! An event is trusted by the time it is a [`Notice`]: whoever makes one has verified its sender.
//! [`apply`] passes what it says through the same guarded verb as any other verdict, so an event,
//! a reconciler and a late owner may race, and the first of them decides.

mod wire;

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use semel_core::store::Result;
use semel_core::{
    By, Code, Completion, Identity, Inspect, Key, KeyScope, Maintain, OperationId, Record,
    Resolution, Resolve, Response, State, Unresolved, Verdict,
};

use crate::meters;

/// How often a record is looked for where it changes while an event is applied.
const LOOKS: usize = 2;

/// What an event from elsewhere says of an operation. Kept as JSON in the inbox until it is
/// settled.
///
/// `Debug` shows neither the key nor what was sent.
#[derive(Clone, PartialEq, Eq)]
pub struct Notice {
    /// Which operation.
    pub about: About,
    /// How it ended.
    pub says: Says,
    /// The event as it came, or as much of it as is worth keeping.
    pub evidence: Bytes,
}

/// Which operation an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The operation of that name.
    Operation(OperationId),
    /// The operation that a client's key stands for.
    Key {
        /// Whose key it is.
        tenant: Box<str>,
        /// The key.
        key: Key,
        /// The commands that the sender's events may be about.
        operations: Vec<Box<str>>,
    },
    /// The operation that created the resource of that id, or was about to.
    Resource(Box<str>),
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Says {
    /// It happened, with success or with a final failure.
    Completed(Response),
    /// It did not happen: the provider's own word about this operation, not its silence.
    NotExecuted,
}

/// What was made of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The operation was unknown, and is no longer.
    Resolved,
    /// Nothing is left to be said about the operation.
    Moot,
    /// It says that something happened which had been given up as not executed. A person has to
    /// look: it may happen twice, or already has.
    Contradicted,
    /// Nothing can be made of it yet: the operation is not recorded, or not over, or it is not
    /// clear which one is meant.
    Parked,
}

/// Why stored bytes are no notice.
#[derive(Debug, thiserror::Error)]
#[error("what is stored in the inbox is not a notice: {0}")]
pub struct Unreadable(#[from] Box<dyn std::error::Error + Send + Sync>);

impl Notice {
    /// The notice as the inbox keeps it.
    pub fn to_bytes(&self) -> Bytes {
        wire::write(self)
    }

    /// The notice that [`Notice::to_bytes`] wrote.
    ///
    /// # Errors
    /// [`Unreadable`] where the bytes are something else.
    pub fn from_bytes(stored: &[u8]) -> std::result::Result<Self, Unreadable> {
        wire::read(stored).map_err(Unreadable)
    }
}

/// Makes of an event what can be made of it now.
///
/// # Errors
/// As in [`store`](semel_core::store). The event is applied again later; that is safe.
///
/// # Cancellation
/// As for [`Store`](semel_core::Store).
pub async fn apply<S: Maintain + Inspect>(
    store: &S,
    source: &str,
    notice: &Notice,
) -> Result<Applied> {
    for _ in 0..LOOKS {
        let record = match find(store, &notice.about).await? {
            Sought::One(record) => record,
            Sought::None => return Ok(Applied::Parked),
            Sought::Several => {
                tracing::warn!(
                    source,
                    "an event fits several operations, one of them unfinished; it is parked"
                );
                return Ok(Applied::Parked);
            }
        };
        match (&record.state, &notice.says) {
            // The event came before the owner's own word, which is about to follow.
            (State::InProgress(_), _) => return Ok(Applied::Parked),
            (State::Completed(_) | State::Expired { .. }, _)
            | (State::FailedRetryable { .. }, Says::NotExecuted) => return Ok(Applied::Moot),
            (State::FailedRetryable { .. }, Says::Completed(_)) => {
                contradicted(source, &record);
                return Ok(Applied::Contradicted);
            }
            (State::Unknown(unresolved), says) => {
                let (verdict, applied) = judge(&record, *unresolved, says);
                let resolve = Resolve {
                    fence: record.fence(),
                    verdict,
                    by: By::from(&*format!("webhook:{source}")),
                    evidence: Some(notice.evidence.clone()).filter(|seen| !seen.is_empty()),
                };
                match store.resolve(resolve).await? {
                    Resolution::Applied => {
                        tracing::info!(source, id = %record.id, ?applied, "an event was applied");
                        return Ok(applied);
                    }
                    Resolution::Fenced(_) => {}
                }
            }
        }
    }
    Ok(Applied::Parked)
}

/// What an event says of an operation that is unknown at its present attempt.
fn judge(record: &Record, unresolved: Unresolved, says: &Says) -> (Verdict, Applied) {
    match says {
        Says::Completed(response) => {
            let completion = Completion {
                response: response.clone(),
                resource: None,
            };
            (Verdict::Completed(completion), Applied::Resolved)
        }
        Says::NotExecuted if record.attempt == 1 => {
            let code = Code::from("webhook_not_executed");
            (Verdict::NotExecuted(code), Applied::Resolved)
        }
        // An event does not name an attempt. This one may be about an earlier attempt, which
        // was released by the same truth, and told late; the present one may have executed.
        Says::NotExecuted => {
            let code = Code::from("webhook_not_executed_of_some_attempt");
            let verdict = Verdict::StillUnknown(code, unresolved.reconcile_after);
            (verdict, Applied::Moot)
        }
    }
}

/// What an event can be about.
enum Sought {
    None,
    One(Box<Record>),
    /// Several, and one of them is not over: to guess would be to resolve another's payment.
    Several,
}

impl From<Option<Record>> for Sought {
    fn from(found: Option<Record>) -> Self {
        found.map_or(Self::None, |record| Self::One(Box::new(record)))
    }
}

async fn find<S: Inspect>(store: &S, about: &About) -> Result<Sought> {
    let found = match about {
        About::Operation(id) => store.find(*id).await?,
        About::Resource(id) => store.find_resource(id).await?,
        About::Key {
            tenant,
            key,
            operations,
        } => return find_by_key(store, tenant, key, operations).await,
    };
    Ok(found.into())
}

async fn find_by_key<S: Inspect>(
    store: &S,
    tenant: &str,
    key: &Key,
    operations: &[Box<str>],
) -> Result<Sought> {
    let mut found = BTreeMap::new();
    for operation in operations {
        // A name that no identity can have is nobody's.
        let Ok(identity) = Identity::new(tenant, operation.clone(), key.clone()) else {
            continue;
        };
        for scope in [KeyScope::Operation, KeyScope::Tenant] {
            let record = store
                .find_identity(&identity.clone().scoped(scope))
                .await?
                // A key of the tenant's may stand for a command that this sender knows nothing of.
                .filter(|record| *record.identity.operation() == **operation);
            found.extend(record.map(|record| (record.id, record)));
        }
    }
    let unfinished = found.values().any(|record| match &record.state {
        State::InProgress(_) | State::Unknown(_) => true,
        State::Completed(_) | State::FailedRetryable { .. } | State::Expired { .. } => false,
    });
    if found.len() > 1 && unfinished {
        return Ok(Sought::Several);
    }
    Ok(found.into_values().next_back().into())
}

fn contradicted(source: &str, record: &Record) {
    metrics::counter!(meters::names::CONTRADICTED, "source" => source.to_owned()).increment(1);
    tracing::error!(
        source,
        id = %record.id,
        attempt = record.attempt,
        code = record.last_error.as_ref().map(Code::as_str),
        "the provider says that an operation happened which was released as not executed; \
         a retry may execute it a second time: look at it now"
    );
}

impl fmt::Debug for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notice")
            .field("about", &self.about)
            .field("says", &self.says)
            .field("evidence_bytes", &self.evidence.len())
            .finish()
    }
}
