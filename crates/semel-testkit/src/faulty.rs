//! A store that fails where failing hurts.

mod calls;

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use semel_core::store::{Error, Result};
use tokio::sync::watch;

/// A store that does what the one inside does, except where the plan says otherwise.
/// Clones share store and plan.
///
/// ```
/// use semel_core::{Memory, Store};
/// use semel_testkit::faulty::{Fault, Faulty, Verb};
///
/// let store = Faulty::new(Memory::default());
/// store.next(Verb::Complete, Fault::FailAfter);
/// // The next `complete` is performed, and its caller is told that nobody knows.
/// ```
pub struct Faulty<S> {
    inner: Arc<S>,
    plan: Arc<Mutex<Plan>>,
}

/// What goes wrong with one call.
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
    /// The caller is told [`Error::Ambiguous`] at once; it is performed when the gate opens.
    LandLate(Gate),
}

/// A call, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// [`Store::reserve`](semel_core::Store::reserve)
    Reserve,
    /// [`Store::complete`](semel_core::Store::complete)
    Complete,
    /// [`Store::release`](semel_core::Store::release)
    Release,
    /// [`Store::evict`](semel_core::Store::evict)
    Evict,
    /// [`Store::mark_unknown`](semel_core::Store::mark_unknown)
    MarkUnknown,
    /// [`Store::heartbeat`](semel_core::Store::heartbeat)
    Heartbeat,
    /// [`Store::advance`](semel_core::Store::advance)
    Advance,
    /// [`Maintain::sweep`](semel_core::Maintain::sweep)
    Sweep,
    /// [`Maintain::claim_abandoned`](semel_core::Maintain::claim_abandoned)
    ClaimAbandoned,
    /// [`Maintain::claim_due`](semel_core::Maintain::claim_due)
    ClaimDue,
    /// [`Maintain::resolve`](semel_core::Maintain::resolve)
    Resolve,
    /// [`Maintain::dead_letter`](semel_core::Maintain::dead_letter)
    DeadLetter,
    /// [`Maintain::expire`](semel_core::Maintain::expire)
    Expire,
    /// [`Maintain::drop_bodies`](semel_core::Maintain::drop_bodies)
    DropBodies,
    /// [`Maintain::purge`](semel_core::Maintain::purge)
    Purge,
    /// [`Maintain::erase`](semel_core::Maintain::erase)
    Erase,
    /// [`Maintain::revealed`](semel_core::Maintain::revealed)
    Revealed,
    /// [`Inspect::find`](semel_core::Inspect::find)
    Find,
    /// [`Inspect::find_identity`](semel_core::Inspect::find_identity)
    FindIdentity,
    /// [`Inspect::list`](semel_core::Inspect::list)
    List,
    /// [`Inspect::find_resource`](semel_core::Inspect::find_resource)
    FindResource,
    /// [`Inspect::history`](semel_core::Inspect::history)
    History,
    /// [`Inspect::standing`](semel_core::Inspect::standing)
    Standing,
    /// [`Inbox::receive`](semel_core::Inbox::receive)
    Receive,
    /// [`Inbox::settle`](semel_core::Inbox::settle)
    Settle,
    /// [`Inbox::claim_parked`](semel_core::Inbox::claim_parked)
    ClaimParked,
    /// [`Inbox::forget`](semel_core::Inbox::forget)
    Forget,
    /// [`Figures::count`](semel_core::Figures::count)
    Count,
    /// [`Figures::activity`](semel_core::Figures::activity)
    Activity,
    /// [`Figures::survey`](semel_core::Figures::survey)
    Survey,
    /// [`Figures::publish_census`](semel_core::Figures::publish_census)
    PublishCensus,
    /// [`Figures::census`](semel_core::Figures::census)
    Census,
    /// [`Outbox::claim_events`](semel_core::Outbox::claim_events)
    ClaimEvents,
    /// [`Outbox::mark_sent`](semel_core::Outbox::mark_sent)
    MarkSent,
    /// [`Outbox::hold_back`](semel_core::Outbox::hold_back)
    HoldBack,
    /// [`Outbox::set_aside`](semel_core::Outbox::set_aside)
    SetAside,
    /// [`Outbox::dead_events`](semel_core::Outbox::dead_events)
    DeadEvents,
    /// [`Outbox::revive`](semel_core::Outbox::revive)
    Revive,
    /// [`Outbox::backlog`](semel_core::Outbox::backlog)
    Backlog,
    /// [`Outbox::stand_down`](semel_core::Outbox::stand_down)
    StandDown,
}

/// A gate that a test opens: the way to delay a call without sleeping. Clones are the same.
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

    /// What happens to the next call of that verb; called again, to the one after.
    pub fn next(&self, verb: Verb, fault: Fault) {
        self.plan().queue.push_back((Some(verb), fault));
    }

    /// What happens to the next call, whatever it is.
    pub fn next_call(&self, fault: Fault) {
        self.plan().queue.push_back((None, fault));
    }

    /// Asks `rule` about every call for which nothing is queued: by its verb, and by how
    /// many calls there were before it.
    pub fn when(&self, rule: impl FnMut(Verb, usize) -> Option<Fault> + Send + 'static) {
        self.plan().rule = Some(Box::new(rule));
    }

    /// Forgets all plans. What is held stays held.
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

impl<S: Send + Sync + 'static> Faulty<S> {
    async fn call<T, F>(&self, verb: Verb, perform: impl FnOnce(Arc<S>) -> F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let fault = self.plan().fault(verb);
        let performed = perform(Arc::clone(&self.inner));
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
