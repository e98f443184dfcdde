//! The reconciliation strategy of each operation, and one lookup with it.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store;
use semel_core::transition::Fenced;
use semel_core::{Actor, Code, Record, Resolution, Resolve, State, Store, Unresolved, Verdict};
use tokio_util::task::AbortOnDropHandle;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, error_span};

use crate::meters;
use crate::reconcile::{Lookup, LookupResult, Reconcile, Schedule};

/// The default timeout of one lookup.
pub const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The actor of scheduled lookups in record histories.
pub const RECONCILER: &str = "reconciler";

/// The strategy of each operation, and the store that takes the verdicts. Clones share both.
pub struct Reconcilers<S> {
    store: Arc<S>,
    strategies: Arc<BTreeMap<Box<str>, Strategy>>,
    lookup_timeout: Duration,
}

/// The outcome of one reconciliation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReconcileOutcome {
    /// The operation had executed; its response is stored.
    Completed,
    /// The operation had not executed; the next request may execute it.
    Released,
    /// The lookup was inconclusive, with the reason.
    StillUnknown(Code),
    /// The record was resolved meanwhile; this verdict changed nothing.
    Overtaken(Fenced),
    /// This operation has no lookup: only a webhook or an operator can resolve the record.
    NoStrategy,
}

impl ReconcileOutcome {
    /// The value of the trace attribute `semel.decision`.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Released => "released",
            Self::StillUnknown(_) => "still_unknown",
            Self::Overtaken(_) => "overtaken",
            Self::NoStrategy => "no_way",
        }
    }
}

/// Why a strategy was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operation already has a strategy.
    #[error("operation {0} already has a reconciliation strategy; remove one of the two")]
    Repeated(Box<str>),
    /// The operation name is empty.
    #[error("the operation name is empty: name it, for example \"create_payment\"")]
    Unnamed,
    /// No lookup would ever run.
    #[error("attempts is 0: at least one lookup must run before a record is dead-lettered")]
    NoAttempts,
    /// Lookups would follow each other without a pause.
    #[error("every is 0: set an interval between two lookups, for example 5s")]
    NoPause,
    /// `every` is longer than `max_every`.
    #[error("every ({every:?}) is longer than max_every ({max_every:?})")]
    Order {
        /// The first interval.
        every: Duration,
        /// The longest interval.
        max_every: Duration,
    },
}

#[derive(Clone)]
struct Strategy {
    schedule: Schedule,
    /// `None` where only a webhook or an operator can resolve the record.
    reconcile: Option<Arc<dyn DynReconcile>>,
}

/// [`Reconcile`], object-safe.
trait DynReconcile: Send + Sync {
    fn look_up<'a>(
        &'a self,
        record: &'a Record,
    ) -> Pin<Box<dyn Future<Output = Lookup> + Send + 'a>>;
}

impl<R: Reconcile> DynReconcile for R {
    fn look_up<'a>(
        &'a self,
        record: &'a Record,
    ) -> Pin<Box<dyn Future<Output = Lookup> + Send + 'a>> {
        Box::pin(Reconcile::look_up(self, record))
    }
}

impl<S> Reconcilers<S> {
    /// No strategies.
    pub fn new(store: S) -> Self {
        Self::over(Arc::new(store))
    }

    pub(crate) fn over(store: Arc<S>) -> Self {
        Self {
            store,
            strategies: Arc::default(),
            lookup_timeout: LOOKUP_TIMEOUT,
        }
    }

    /// Unknown records of this operation are looked up with `reconcile`.
    ///
    /// # Errors
    /// [`Error`] if the schedule is invalid, or the operation already has a strategy.
    pub fn poll_with(
        self,
        operation: impl Into<Box<str>>,
        schedule: Schedule,
        reconcile: impl Reconcile,
    ) -> Result<Self, Error> {
        self.with(operation.into(), schedule, Some(Arc::new(reconcile)))
    }

    /// Unknown records of this operation wait for a webhook. No lookup runs; the record is
    /// dead-lettered after `attempts` intervals. A webhook that arrives later still resolves it.
    ///
    /// # Errors
    /// As [`poll_with`](Reconcilers::poll_with).
    pub fn wait_for_webhook(
        self,
        operation: impl Into<Box<str>>,
        schedule: Schedule,
    ) -> Result<Self, Error> {
        self.with(operation.into(), schedule, None)
    }

    /// Nothing can look up unknown records of this operation: the worker dead-letters them at once,
    /// so that an operator sees them.
    ///
    /// # Errors
    /// [`Error`] if the name is empty, or the operation already has a strategy.
    pub fn leave_to_operator(self, operation: impl Into<Box<str>>) -> Result<Self, Error> {
        self.insert(
            operation.into(),
            Strategy {
                schedule: Schedule {
                    attempts: 0,
                    ..Schedule::default()
                },
                reconcile: None,
            },
        )
    }

    /// Sets the timeout of one lookup; the default is [`LOOKUP_TIMEOUT`].
    pub fn lookup_timeout(self, lookup_timeout: Duration) -> Self {
        Self {
            lookup_timeout,
            ..self
        }
    }

    /// The operations that have a strategy, in order.
    pub fn operations(&self) -> impl Iterator<Item = &str> {
        self.strategies.keys().map(|operation| &**operation)
    }

    /// The schedule of an operation that has a strategy.
    pub fn schedule(&self, operation: &str) -> Option<Schedule> {
        self.strategies
            .get(operation)
            .map(|strategy| strategy.schedule)
    }

    /// Whether records of this operation can be looked up.
    pub fn can_look_up(&self, operation: &str) -> bool {
        self.strategies
            .get(operation)
            .is_some_and(|strategy| strategy.reconcile.is_some())
    }

    fn with(
        self,
        operation: Box<str>,
        schedule: Schedule,
        reconcile: Option<Arc<dyn DynReconcile>>,
    ) -> Result<Self, Error> {
        let Schedule {
            every,
            max_every,
            attempts,
            downstream_idempotent: _,
        } = schedule;
        if attempts == 0 {
            return Err(Error::NoAttempts);
        }
        if every.is_zero() {
            return Err(Error::NoPause);
        }
        if every > max_every {
            return Err(Error::Order { every, max_every });
        }
        self.insert(
            operation,
            Strategy {
                schedule,
                reconcile,
            },
        )
    }

    fn insert(mut self, operation: Box<str>, strategy: Strategy) -> Result<Self, Error> {
        if operation.is_empty() {
            return Err(Error::Unnamed);
        }
        let strategies = Arc::make_mut(&mut self.strategies);
        if strategies.contains_key(&operation) {
            return Err(Error::Repeated(operation));
        }
        strategies.insert(operation, strategy);
        Ok(self)
    }
}

impl<S: Store> Reconcilers<S> {
    /// Looks up the outcome of an unknown record now, and resolves the record with it. The worker
    /// calls this on schedule, an operator at any time; `reconcile_after` of `record` stays as it
    /// is.
    ///
    /// # Errors
    /// The lookup ran, and the store did not accept the verdict or did not confirm it. Calling
    /// this again is safe.
    ///
    /// # Cancellation
    /// The lookup is abandoned. A verdict that was already sent may or may not be applied.
    pub async fn reconcile(&self, record: &Record, by: Actor) -> store::Result<ReconcileOutcome> {
        let operation = record.identity.operation();
        let Some(Strategy {
            schedule,
            reconcile: Some(reconcile),
        }) = self.strategies.get(operation)
        else {
            return Ok(ReconcileOutcome::NoStrategy);
        };
        let unresolved = match &record.state {
            State::Unknown(unresolved) => *unresolved,
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Expired { .. } => {
                return Ok(ReconcileOutcome::Overtaken(Fenced::by(Some(record))));
            }
        };
        let span = span(record, unresolved);
        let resolving = self.resolve(record, by, reconcile, *schedule, unresolved);
        let outcome = resolving.instrument(span.clone()).await?;
        span.record("semel.decision", outcome.as_str());
        Ok(outcome)
    }

    async fn resolve(
        &self,
        record: &Record,
        by: Actor,
        reconcile: &Arc<dyn DynReconcile>,
        schedule: Schedule,
        unresolved: Unresolved,
    ) -> store::Result<ReconcileOutcome> {
        let Lookup { result, evidence } = self.look_up(Arc::clone(reconcile), record).await;
        let (verdict, outcome) = verdict(result, schedule, unresolved);
        let resolve = Resolve {
            fence: record.fence(),
            verdict,
            by,
            evidence: Some(evidence).filter(|seen| !seen.is_empty()),
        };
        let outcome = match self.store.resolve(resolve).await? {
            Resolution::Applied => outcome,
            Resolution::Fenced(fenced) => ReconcileOutcome::Overtaken(fenced),
        };
        report(record, &outcome);
        Ok(outcome)
    }

    /// Runs one lookup in its own task, because it may panic, hang or block its thread.
    async fn look_up(&self, reconcile: Arc<dyn DynReconcile>, record: &Record) -> Lookup {
        let record = record.clone();
        let lookup = async move { reconcile.look_up(&record).await };
        let lookup = AbortOnDropHandle::new(tokio::spawn(lookup.in_current_span()));
        match tokio::time::timeout(self.lookup_timeout, lookup).await {
            Ok(Ok(lookup)) => lookup,
            Ok(Err(error)) => LookupResult::unclear("reconcile_panicked")
                .seen(format!("the lookup ended: {error}")),
            Err(_) => LookupResult::unclear("reconcile_timed_out")
                .seen(format!("no answer within {:?}", self.lookup_timeout)),
        }
    }
}

/// The span of one lookup. It has level ERROR so that a filter which lets any of its events
/// through also keeps the span.
fn span(record: &Record, unresolved: Unresolved) -> Span {
    error_span!(
        "reconcile",
        semel.operation.id = %record.id,
        semel.operation = record.identity.operation(),
        semel.attempt = record.attempt,
        semel.look = unresolved.reconcile_attempts,
        semel.decision = Empty,
    )
}

/// The verdict that a lookup justifies, and the outcome if the store applies it.
fn verdict(
    result: LookupResult,
    schedule: Schedule,
    unresolved: Unresolved,
) -> (Verdict, ReconcileOutcome) {
    let still_unknown = |code: Code| {
        let verdict = Verdict::StillUnknown(code.clone(), unresolved.reconcile_after);
        (verdict, ReconcileOutcome::StillUnknown(code))
    };
    match result {
        LookupResult::Completed(completion) => {
            (Verdict::Completed(completion), ReconcileOutcome::Completed)
        }
        LookupResult::NeverCreated(code) => {
            (Verdict::NotExecuted(code), ReconcileOutcome::Released)
        }
        // If the call arrives late, the provider treats it and the retry as one.
        LookupResult::Absent(code) if schedule.downstream_idempotent => {
            (Verdict::NotExecuted(code), ReconcileOutcome::Released)
        }
        LookupResult::Absent(code) | LookupResult::Unclear(code) => still_unknown(code),
    }
}

fn report(record: &Record, outcome: &ReconcileOutcome) {
    let (id, operation) = (record.id, record.identity.operation());
    match outcome {
        ReconcileOutcome::Completed | ReconcileOutcome::Released => {
            meters::count(meters::names::RESOLVED, operation);
            tracing::info!(%id, operation, ?outcome, "resolved an unknown record");
        }
        ReconcileOutcome::StillUnknown(code) => {
            meters::count(meters::names::FAILED, operation);
            tracing::debug!(%id, operation, %code, "the outcome is still unknown");
        }
        ReconcileOutcome::Overtaken(fenced) => {
            tracing::debug!(%id, operation, ?fenced, "the record was resolved meanwhile");
        }
        ReconcileOutcome::NoStrategy => {}
    }
}

impl<S> Clone for Reconcilers<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            strategies: Arc::clone(&self.strategies),
            lookup_timeout: self.lookup_timeout,
        }
    }
}

impl<S> fmt::Debug for Reconcilers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.operations()).finish()
    }
}
