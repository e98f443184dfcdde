//! A store that fails where failing hurts.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
pub use semel_core::store::Verb;
use semel_core::store::{Backend, ErasureEpoch, Error, Reply, Request, Result};
use semel_core::{Clock, Completion, Decision, OperationId, RecoveryPoint, Reserve};
use tokio::sync::watch;

/// A store that forwards to the inner one, except for planned faults.
/// Clones share store and plan.
///
/// ```
/// use semel_core::Memory;
/// use semel_testkit::faulty::{Fault, Faulty, Verb};
///
/// let store = Faulty::new(Memory::default());
/// store.next(Verb::Complete, Fault::FailAfter);
/// // The next `complete` is performed, and its caller gets `Error::Ambiguous`.
/// ```
pub struct Faulty<S> {
    inner: Arc<S>,
    plan: Arc<Mutex<Plan>>,
}

/// The fault of one call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Nothing is performed: [`Error::Unavailable`].
    FailBefore,
    /// It is performed, and the answer is lost: [`Error::Ambiguous`].
    FailAfter,
    /// It is performed when the gate opens. A caller that gives up does not take it back.
    HoldBefore(Gate),
    /// It is performed at once, and answered when the gate opens.
    HoldAfter(Gate),
    /// The caller gets [`Error::Ambiguous`] at once; the call is performed when the gate opens.
    LandLate(Gate),
}

/// A gate that a test opens, to delay a call without sleeping. Clones share it.
#[derive(Clone, Debug)]
pub struct Gate {
    state: Arc<watch::Sender<Passage>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Passage {
    arrived: usize,
    performed: usize,
    open: bool,
}

/// Decides by verb and by the number of calls before it.
type Rule = Box<dyn FnMut(Verb, usize) -> Option<Fault> + Send>;

#[derive(Default)]
struct Plan {
    queue: VecDeque<(Option<Verb>, Fault)>,
    rule: Option<Rule>,
    calls: usize,
}

impl<S> Faulty<S> {
    /// A store that fails nowhere yet.
    pub fn new(inner: S) -> Self {
        Self {
            inner: Arc::new(inner),
            plan: Arc::default(),
        }
    }

    /// The store inside, which does not fail.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// Queues a fault for the next call of that verb; called again, for the one after.
    pub fn next(&self, verb: Verb, fault: Fault) {
        self.plan().queue.push_back((Some(verb), fault));
    }

    /// Queues a fault for the next call of any verb.
    pub fn next_call(&self, fault: Fault) {
        self.plan().queue.push_back((None, fault));
    }

    /// Asks `rule` about every call for which nothing is queued: by its verb, and by how
    /// many calls there were before it.
    pub fn when(&self, rule: impl FnMut(Verb, usize) -> Option<Fault> + Send + 'static) {
        self.plan().rule = Some(Box::new(rule));
    }

    /// Removes all plans. Held calls stay held.
    pub fn heal(&self) {
        let mut plan = self.plan();
        plan.queue.clear();
        plan.rule = None;
    }

    /// How many calls there were.
    pub fn calls(&self) -> usize {
        self.plan().calls
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Plan {
    fn fault(&mut self, verb: Verb) -> Option<Fault> {
        let before = self.calls;
        self.calls += 1;
        let place = self
            .queue
            .iter()
            .position(|(wanted, _)| wanted.is_none_or(|wanted| wanted == verb));
        match place {
            Some(place) => self.queue.remove(place).map(|(_, fault)| fault),
            None => self.rule.as_mut().and_then(|rule| rule(verb, before)),
        }
    }
}

impl<S: Backend> Backend for Faulty<S> {
    async fn call(&self, request: Request) -> Result<Reply> {
        let verb = request.verb();
        let inner = Arc::clone(&self.inner);
        let performed = async move { inner.call(request).await };
        // A subscription is not performed, so it has no fault.
        if verb == Verb::Watch {
            return performed.await;
        }
        let fault = self.plan().fault(verb);
        match fault {
            None => performed.await,
            Some(Fault::FailBefore) => Err(Error::Unavailable {
                reason: format!("{verb:?} was planned to fail before it is performed").into(),
                source: None,
            }),
            Some(Fault::FailAfter) => {
                performed.await?;
                Err(ambiguous(verb))
            }
            Some(Fault::HoldBefore(gate)) => {
                go_on(verb, async move {
                    gate.pass().await;
                    gate.performed(performed.await)
                })
                .await
            }
            Some(Fault::HoldAfter(gate)) => {
                go_on(verb, async move {
                    let answer = gate.performed(performed.await);
                    gate.pass().await;
                    answer
                })
                .await
            }
            Some(Fault::LandLate(gate)) => {
                drop(tokio::spawn(async move {
                    gate.pass().await;
                    drop(gate.performed(performed.await));
                }));
                Err(ambiguous(verb))
            }
        }
    }

    /// Every request meets its fault.
    fn try_decide(&self, _: &Reserve) -> Option<Decision> {
        None
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }

    fn erasure_epoch(&self) -> Option<ErasureEpoch> {
        self.inner.erasure_epoch()
    }

    fn prepare(&self, id: OperationId, completion: Completion) -> Result<Completion> {
        self.inner.prepare(id, completion)
    }

    fn prepare_point(&self, id: OperationId, point: RecoveryPoint) -> Result<RecoveryPoint> {
        self.inner.prepare_point(id, point)
    }

    fn decrypt_evidence(&self, id: OperationId, evidence: Bytes) -> Result<Bytes> {
        self.inner.decrypt_evidence(id, evidence)
    }
}

/// Performs a call that its caller cannot take back.
async fn go_on<T: Send + 'static>(
    verb: Verb,
    call: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    match tokio::spawn(call).await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Err(ambiguous(verb)),
        },
    }
}

fn ambiguous(verb: Verb) -> Error {
    Error::Ambiguous {
        reason: format!("the answer to {verb:?} was planned to be lost").into(),
        source: None,
    }
}

impl Gate {
    /// A closed gate.
    pub fn closed() -> Self {
        Self {
            state: Arc::new(watch::Sender::default()),
        }
    }

    /// Lets everyone through, now and later.
    pub fn open(&self) {
        self.state.send_modify(|passage| passage.open = true);
    }

    /// Waits until a call stands at the gate.
    ///
    /// # Cancellation
    /// Dropping this only stops waiting.
    pub async fn reached(&self) {
        self.reached_times(1).await;
    }

    /// Waits until this many calls have come to the gate.
    ///
    /// # Cancellation
    /// Dropping this only stops waiting.
    pub async fn reached_times(&self, calls: usize) {
        self.until(|passage| passage.arrived >= calls).await;
    }

    /// Waits until a call that the gate holds or held is performed.
    ///
    /// # Cancellation
    /// Dropping this only stops waiting.
    pub async fn landed(&self) {
        self.until(|passage| passage.performed > 0).await;
    }

    /// Stands at the gate until it opens.
    ///
    /// # Cancellation
    /// Dropping this leaves the gate.
    pub async fn pass(&self) {
        self.state.send_modify(|passage| passage.arrived += 1);
        self.until(|passage| passage.open).await;
    }

    fn performed<T>(&self, answer: T) -> T {
        self.state.send_modify(|passage| passage.performed += 1);
        answer
    }

    async fn until(&self, condition: impl Fn(&Passage) -> bool) {
        // The sender lives as long as this gate, so waiting cannot fail.
        drop(self.state.subscribe().wait_for(condition).await);
    }
}

impl<S> Clone for Faulty<S> {
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            plan: Arc::clone(&self.plan),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faulty").field(&self.inner).finish()
    }
}
