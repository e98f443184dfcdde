//! The state of one simulated scenario: time, randomness, and the recorded events.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use semel_core::key::Dialect;
use semel_core::{Clock, KeyScope, OperationId, Timestamp};
use tokio::time::Instant;

use crate::Sabotage;
use crate::plan::{Plan, Rates};
use crate::provider::Ledger;
use crate::rng::Rng;
use crate::witness::{Broken, Witness};

/// The virtual time at which every scenario starts, in November 2023.
const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// The scenario of one seed.
pub(crate) struct Scenario {
    pub(crate) plan: Plan,
    pub(crate) sabotage: Sabotage,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) witness: Mutex<Witness>,
    pub(crate) ledger: Mutex<Ledger>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    log: EventLog,
    ids: SimulatedIds,
    healed: bool,
    outage_until: Option<Instant>,
    /// The first final answer of each operation that any client got.
    answers: HashMap<OperationId, String>,
    keep_trace: bool,
}

/// The recorded events.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog {
    pub(crate) hash: Hash,
    pub(crate) steps: u64,
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) outcomes: BTreeMap<String, u64>,
    pub(crate) violations: Vec<(&'static str, String)>,
    pub(crate) trace: Vec<String>,
}

/// FNV-1a over all events: the same for the same events in the same order, in every process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hash(pub(crate) u64);

/// The outcome of one store call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallOutcome {
    /// It is performed and answered.
    Fine { before: Duration, after: Duration },
    /// It is not performed, and the caller gets an error.
    Fails { before: Duration },
    /// It is performed, and the caller gets an ambiguous error.
    Lost { before: Duration },
    /// The caller gets an ambiguous error; it is performed later.
    Late { before: Duration, by: Duration },
    /// It is performed and answered long after it was made, whether the caller waits or not.
    Slow { by: Duration, then: Duration },
}

/// Tokio's paused time, which advances only when no task is ready.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    start: Instant,
}

/// Real operation ids are random and contain the real time. The store gets ids from the seed instead.
/// They sort like the real ones, and their last bits are random as well.
#[derive(Default)]
struct SimulatedIds {
    by_real_id: HashMap<OperationId, OperationId>,
    count: u32,
}

impl Scenario {
    pub(crate) fn new(seed: u64, sabotage: Sabotage, keep_trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let state = State {
            rng,
            log: EventLog::default(),
            ids: SimulatedIds::default(),
            healed: false,
            outage_until: None,
            answers: HashMap::new(),
            keep_trace,
        };
        let scenario = Self {
            plan,
            sabotage,
            clock: Arc::new(VirtualClock {
                start: Instant::now(),
            }),
            witness: Mutex::default(),
            ledger: Mutex::default(),
            state: Mutex::new(state),
        };
        scenario.record_event(format_args!("seed {seed}: {:?}", scenario.plan));
        scenario
    }

    /// Records an event.
    pub(crate) fn record_event(&self, what: fmt::Arguments<'_>) {
        let at = self.elapsed();
        let mut state = self.state();
        state.log.steps += 1;
        // Writing to a hash cannot fail.
        let _ = writeln!(state.log.hash, "{} {what}", at.as_micros());
        if state.keep_trace {
            let line = format!("{:>9.3}  {what}", at.as_secs_f64());
            state.log.trace.push(line);
        }
    }

    /// Counts an injected fault.
    pub(crate) fn fault(&self, name: &'static str) {
        *self.state().log.faults.entry(name).or_default() += 1;
    }

    /// Counts the result of a request.
    pub(crate) fn outcome(&self, name: impl Into<String>) {
        *self.state().log.outcomes.entry(name.into()).or_default() += 1;
    }

    /// Records a broken invariant.
    pub(crate) fn violate(&self, invariant: &'static str, how: String) {
        self.record_event(format_args!("VIOLATION {invariant}: {how}"));
        self.state().log.violations.push((invariant, how));
    }

    /// Records several broken invariants.
    pub(crate) fn violate_all(&self, broken: Broken) {
        for (invariant, how) in broken {
            self.violate(invariant, how);
        }
    }

    /// The scope of keys.
    pub(crate) fn key_scope(&self) -> KeyScope {
        match self.plan.dialect {
            Dialect::Ietf { .. } => KeyScope::Operation,
            Dialect::Stripe => KeyScope::Tenant,
        }
    }

    /// Draws from the seed.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.state().rng)
    }

    /// Draws how many polls a ready task skips: mostly none, or tasks would never collide.
    pub(crate) fn draw_turns(&self, most: u64) -> u64 {
        self.draw(|rng| {
            if rng.in_thousand(250) {
                rng.between(1, most)
            } else {
                0
            }
        })
    }

    /// Waits for a random time.
    pub(crate) async fn sleep_random(&self, low: u64, high: u64) {
        let time = self.draw(|rng| rng.millis(low, high));
        tokio::time::sleep(time).await;
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.start.elapsed()
    }

    /// Ends all faults.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.healed = true;
        state.outage_until = None;
        drop(state);
        self.record_event(format_args!("healed"));
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.state().healed
    }

    /// The store is unreachable for a while.
    pub(crate) fn store_outage(&self, time: Duration) {
        self.state().outage_until = Some(Instant::now() + time);
        self.fault("store_outage");
    }

    /// Draws the simulated id of an operation that is about to be reserved.
    pub(crate) fn assign_id(&self, real: OperationId) -> OperationId {
        let mut state = self.state();
        let chance = u32::try_from(state.rng.next() >> 32).unwrap_or(0);
        let ids = &mut state.ids;
        ids.count += 1;
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&ids.count.to_be_bytes());
        bytes[12..].copy_from_slice(&chance.to_be_bytes());
        let id = OperationId::from_bytes(bytes);
        ids.by_real_id.insert(real, id);
        id
    }

    /// The simulated id of an operation; the id itself, if it has none.
    pub(crate) fn simulated_id(&self, id: OperationId) -> OperationId {
        self.state().ids.by_real_id.get(&id).copied().unwrap_or(id)
    }

    /// The first final answer that any client got for an operation; this one, if there was none.
    pub(crate) fn first_answer(&self, id: OperationId, answer: &str) -> String {
        let mut state = self.state();
        let first = state.answers.entry(id);
        first.or_insert_with(|| answer.to_owned()).clone()
    }

    /// Draws the outcome of a store call.
    pub(crate) fn draw_call_outcome(&self) -> CallOutcome {
        let (outcome, fault) = self.state().draw_call_outcome(self.plan.rates);
        if let Some(fault) = fault {
            self.fault(fault);
        }
        outcome
    }

    /// The events so far.
    pub(crate) fn log(&self) -> EventLog {
        self.state().log.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn draw_call_outcome(&mut self, rates: Rates) -> (CallOutcome, Option<&'static str>) {
        let rng = &mut self.rng;
        let far = rng.in_thousand(50);
        let before = rng.millis(0, if far { 400 } else { 15 });
        let after = rng.millis(0, 10);
        let fine = CallOutcome::Fine { before, after };
        if self.healed {
            return (fine, None);
        }
        if self
            .outage_until
            .is_some_and(|until| Instant::now() < until)
        {
            return if rng.in_thousand(850) {
                (CallOutcome::Fails { before }, Some("store_failed_before"))
            } else {
                (CallOutcome::Lost { before }, Some("store_answer_lost"))
            };
        }
        // Drawn one after the other: they are rare, so the order hardly matters.
        if rng.in_thousand(rates.fails) {
            (CallOutcome::Fails { before }, Some("store_failed_before"))
        } else if rng.in_thousand(rates.lost) {
            (CallOutcome::Lost { before }, Some("store_answer_lost"))
        } else if rng.in_thousand(rates.late) {
            let by = rng.millis(5, 15_000);
            (CallOutcome::Late { before, by }, Some("store_landed_late"))
        } else if rng.in_thousand(rates.slow) {
            let (by, then) = (rng.millis(100, 12_000), rng.millis(0, 6000));
            (CallOutcome::Slow { by, then }, Some("store_slow"))
        } else {
            (fine, None)
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        START.saturating_add(self.start.elapsed())
    }
}

impl Default for Hash {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl fmt::Write for Hash {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        Ok(())
    }
}

/// The number of an operation, for messages.
pub(crate) fn number(id: OperationId) -> u32 {
    let [a, b, c, d, ..] = *id.as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// A panic of another task is an injected fault, and leaves complete values.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
