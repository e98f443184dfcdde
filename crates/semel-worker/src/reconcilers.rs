//! Which command's truth is found how, and the asking.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_core::store;
use semel_core::transition::Fenced;
use semel_core::{By, Code, Maintain, Record, Resolution, Resolve, State, Unresolved, Verdict};
use tokio_util::task::AbortOnDropHandle;
use tracing::field::Empty;
use tracing::{Instrument as _, Span, error_span};

use crate::meters;
use crate::reconcile::{Finding, Found, Reconcile, Schedule};

/// How long one look may take unless it is said otherwise. A provider that has not answered a
/// lookup by then will not.
pub const LOOK_MAX: Duration = Duration::from_secs(10);

/// Who looks on schedule, as histories call it.
pub const RECONCILER: &str = "reconciler";

/// The ways to find out, by command, and the store that hears the verdict. Clones are the same.
pub struct Reconcilers<S> {
    store: Arc<S>,
    ways: Arc<BTreeMap<Box<str>, Way>>,
    look_max: Duration,
}

/// What came of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It had happened; the answer is stored.
    Completed,
    /// It had not happened; the next request may execute.
    Released,
    /// Nobody knows yet, and why not.
    StillUnknown(Code),
    /// Somebody else found out meanwhile, and the verdict changed nothing.
    Overtaken(Fenced),
    /// Nobody can be asked about this command: only an event or a person can tell.
    NoWay,
}

impl Asked {
    /// For traces.
    fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Released => "released",
            Self::StillUnknown(_) => "still_unknown",
            Self::Overtaken(_) => "overtaken",
            Self::NoWay => "no_way",
        }
    }
}

/// Why a way was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The command has a way already.
    #[error("{0} has a way to find out already; a command has one")]
    Repeated(Box<str>),
    /// An operation must have a name.
    #[error("the operation is empty; name the command, for example create_payment")]
    Unnamed,
    /// No look would ever be made.
    #[error("attempts is 0; at least one look is made before a person is asked")]
    NoAttempts,
    /// Looks would follow each other without a pause.
    #[error("every is 0; leave some time between two looks")]
    NoPause,
    /// The first pause is longer than the longest.
    #[error("every is {every:?}, longer than max_every, which is {max_every:?}")]
    Order {
        /// The first pause.
        every: Duration,
        /// The longest.
        max_every: Duration,
    },
}

#[derive(Clone)]
struct Way {
    schedule: Schedule,
    /// Nothing where only an event can tell.
    look: Option<Arc<dyn Look>>,
}

/// [`Reconcile`] without its type.
trait Look: Send + Sync {
    fn look<'a>(
        &'a self,
        operation: &'a Record,
    ) -> Pin<Box<dyn Future<Output = Found> + Send + 'a>>;
}

impl<R: Reconcile> Look for R {
    fn look<'a>(
        &'a self,
        operation: &'a Record,
    ) -> Pin<Box<dyn Future<Output = Found> + Send + 'a>> {
        Box::pin(Reconcile::look(self, operation))
    }
}

impl<S> Reconcilers<S> {
    /// No way to find out about anything.
    pub fn new(store: S) -> Self {
        Self::over(Arc::new(store))
    }

    pub(crate) fn over(store: Arc<S>) -> Self {
        Self {
            store,
            ways: Arc::default(),
            look_max: LOOK_MAX,
        }
    }

    /// Unknowns of this command are looked for, by `way`.
    ///
    /// # Errors
    /// [`Error`] where the schedule cannot be kept, or the command has a way already.
    pub fn by_looking(
        self,
        operation: impl Into<Box<str>>,
        schedule: Schedule,
        way: impl Reconcile,
    ) -> Result<Self, Error> {
        self.with(operation.into(), schedule, Some(Arc::new(way)))
    }

    /// Unknowns of this command wait for an event that tells. No look is made; `attempts` pauses
    /// pass before a person is asked. An event that comes later still resolves.
    ///
    /// # Errors
    /// As [`by_looking`](Reconcilers::by_looking).
    pub fn by_webhook(
        self,
        operation: impl Into<Box<str>>,
        schedule: Schedule,
    ) -> Result<Self, Error> {
        self.with(operation.into(), schedule, None)
    }

    /// How long one look may take; [`LOOK_MAX`] unless it is said.
    pub fn look_max(self, look_max: Duration) -> Self {
        Self { look_max, ..self }
    }

    /// The commands that have a way, in order.
    pub fn operations(&self) -> impl Iterator<Item = &str> {
        self.ways.keys().map(|operation| &**operation)
    }

    /// How often a command's unknowns are looked at, where it has a way.
    pub fn schedule(&self, operation: &str) -> Option<Schedule> {
        self.ways.get(operation).map(|way| way.schedule)
    }

    /// Whether somebody can be asked about this command.
    pub fn can_look(&self, operation: &str) -> bool {
        self.ways
            .get(operation)
            .is_some_and(|way| way.look.is_some())
    }

    fn with(
        mut self,
        operation: Box<str>,
        schedule: Schedule,
        look: Option<Arc<dyn Look>>,
    ) -> Result<Self, Error> {
        let Schedule {
            every,
            max_every,
            attempts,
            downstream_idempotent: _,
        } = schedule;
        if operation.is_empty() {
            return Err(Error::Unnamed);
        }
        if attempts == 0 {
            return Err(Error::NoAttempts);
        }
        if every.is_zero() {
            return Err(Error::NoPause);
        }
        if every > max_every {
            return Err(Error::Order { every, max_every });
        }
        let ways = Arc::make_mut(&mut self.ways);
        if ways.contains_key(&operation) {
            return Err(Error::Repeated(operation));
        }
        ways.insert(operation, Way { schedule, look });
        Ok(self)
    }
}

impl<S: Maintain> Reconcilers<S> {
    /// Looks for the outcome of an unknown operation, now, and passes the verdict. The worker asks
    /// on schedule, an operator whenever they like; when the next look is due stays as it is in
    /// `record`.
    ///
    /// # Errors
    /// The look was made, and the store did not take the verdict, or did not say whether it did.
    /// Asking again is safe.
    ///
    /// # Cancellation
    /// The look is given up. A verdict that is on its way may or may not be performed.
    pub async fn ask(&self, record: &Record, by: By) -> store::Result<Asked> {
        let operation = record.identity.operation();
        let way = self.ways.get(operation);
        let Some((schedule, look)) = way.and_then(|way| Some((way.schedule, way.look.as_ref()?)))
        else {
            return Ok(Asked::NoWay);
        };
        let unresolved = match &record.state {
            State::Unknown(unresolved) => *unresolved,
            State::InProgress(_)
            | State::Completed(_)
            | State::FailedRetryable { .. }
            | State::Expired { .. } => return Ok(Asked::Overtaken(Fenced::by(Some(record)))),
        };
        let span = span(record, unresolved);
        let asking = self.pass_verdict(record, by, look, schedule, unresolved);
        let asked = asking.instrument(span.clone()).await?;
        span.record("semel.decision", asked.as_str());
        Ok(asked)
    }

    async fn pass_verdict(
        &self,
        record: &Record,
        by: By,
        look: &Arc<dyn Look>,
        schedule: Schedule,
        unresolved: Unresolved,
    ) -> store::Result<Asked> {
        let Found { finding, evidence } = self.look(Arc::clone(look), record).await;
        let (verdict, asked) = judge(finding, schedule, unresolved);
        let resolve = Resolve {
            fence: record.fence(),
            verdict,
            by,
            evidence: Some(evidence).filter(|seen| !seen.is_empty()),
        };
        let asked = match self.store.resolve(resolve).await? {
            Resolution::Applied => asked,
            Resolution::Fenced(fenced) => Asked::Overtaken(fenced),
        };
        report(record, &asked);
        Ok(asked)
    }

    /// One look, in a task of its own: it may panic, hang or hold up its thread.
    async fn look(&self, look: Arc<dyn Look>, record: &Record) -> Found {
        let record = record.clone();
        let looking = async move { look.look(&record).await };
        let looking = tokio::spawn(looking.in_current_span());
        let looking = AbortOnDropHandle::new(looking);
        match tokio::time::timeout(self.look_max, looking).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                Finding::unclear("reconcile_panicked").seen(format!("the look ended: {error}"))
            }
            Err(_) => Finding::unclear("reconcile_timed_out")
                .seen(format!("no answer within {:?}", self.look_max)),
        }
    }
}

/// Around one look. Of the level of the worst line, so that no filter takes the operation from
/// the lines that it lets through.
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

/// What a finding means for the record, and to the one who asked.
fn judge(finding: Finding, schedule: Schedule, unresolved: Unresolved) -> (Verdict, Asked) {
    let still_unknown = |code: Code| {
        let verdict = Verdict::StillUnknown(code.clone(), unresolved.reconcile_after);
        (verdict, Asked::StillUnknown(code))
    };
    match finding {
        Finding::Completed(completion) => (Verdict::Completed(completion), Asked::Completed),
        Finding::NeverCreated(code) => (Verdict::NotExecuted(code), Asked::Released),
        // A late arrival would be the same call as the retry's.
        Finding::Absent(code) if schedule.downstream_idempotent => {
            (Verdict::NotExecuted(code), Asked::Released)
        }
        Finding::Absent(code) | Finding::Unclear(code) => still_unknown(code),
    }
}

fn report(record: &Record, asked: &Asked) {
    let (id, operation) = (record.id, record.identity.operation());
    match asked {
        Asked::Completed | Asked::Released => {
            meters::count(meters::names::RESOLVED, operation);
            tracing::info!(%id, operation, ?asked, "an unknown outcome was found");
        }
        Asked::StillUnknown(code) => {
            meters::count(meters::names::FAILED, operation);
            tracing::debug!(%id, operation, %code, "an outcome is still unknown");
        }
        Asked::Overtaken(fenced) => {
            tracing::debug!(%id, operation, ?fenced, "somebody else found out meanwhile");
        }
        Asked::NoWay => {}
    }
}

impl<S> Clone for Reconcilers<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            ways: Arc::clone(&self.ways),
            look_max: self.look_max,
        }
    }
}

impl<S> fmt::Debug for Reconcilers<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.operations()).finish()
    }
}
