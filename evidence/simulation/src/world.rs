//! What all parts of one simulated world share: time, chance, and the account of what happened.

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

/// The instant at which every world begins, some day in November 2023.
const BEGINNING: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// One world, of one seed.
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) sabotage: Sabotage,
    pub(crate) clock: Arc<VirtualClock>,
    pub(crate) witness: Mutex<Witness>,
    pub(crate) ledger: Mutex<Ledger>,
    state: Mutex<State>,
}

struct State {
    rng: Rng,
    account: Account,
    names: Names,
    healed: bool,
    outage_until: Option<Instant>,
    /// The first final answer of each operation that any client got.
    answers: HashMap<OperationId, String>,
    keep_trace: bool,
}

/// What happened, as far as anybody outside wants to know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Account {
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

/// What becomes of one store call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// It is performed and answered.
    Fine { before: Duration, after: Duration },
    /// It is not performed, and the caller is told so.
    Fails { before: Duration },
    /// It is performed, and the caller is told that nobody knows.
    Lost { before: Duration },
    /// The caller is told that nobody knows; it is performed later.
    Late { before: Duration, by: Duration },
    /// It is performed and answered long after it was made, whether the caller waits or not.
    Slow { by: Duration, then: Duration },
}

/// Tokio's time, which moves only when nothing else can happen.
#[derive(Debug)]
pub(crate) struct VirtualClock {
    start: Instant,
}

/// Operations are named by chance and by the real time. Here they get other names, which come from
/// the seed: they sort as the real ones do, and what is spread by their last bits is spread alike.
#[derive(Default)]
struct Names {
    given: HashMap<OperationId, OperationId>,
    count: u32,
}

impl World {
    pub(crate) fn new(seed: u64, sabotage: Sabotage, keep_trace: bool) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng);
        let state = State {
            rng,
            account: Account::default(),
            names: Names::default(),
            healed: false,
            outage_until: None,
            answers: HashMap::new(),
            keep_trace,
        };
        let world = Self {
            plan,
            sabotage,
            clock: Arc::new(VirtualClock {
                start: Instant::now(),
            }),
            witness: Mutex::default(),
            ledger: Mutex::default(),
            state: Mutex::new(state),
        };
        world.tell(format_args!("seed {seed}: {:?}", world.plan));
        world
    }

    /// Adds an event to the account.
    pub(crate) fn tell(&self, what: fmt::Arguments<'_>) {
        let at = self.elapsed();
        let mut state = self.state();
        state.account.steps += 1;
        // Writing to a hash cannot fail.
        let _ = writeln!(state.account.hash, "{} {what}", at.as_micros());
        if state.keep_trace {
            let line = format!("{:>9.3}  {what}", at.as_secs_f64());
            state.account.trace.push(line);
        }
    }

    /// A fault that was put in.
    pub(crate) fn fault(&self, name: &'static str) {
        *self.state().account.faults.entry(name).or_default() += 1;
    }

    /// What a client was told.
    pub(crate) fn outcome(&self, name: impl Into<String>) {
        *self
            .state()
            .account
            .outcomes
            .entry(name.into())
            .or_default() += 1;
    }

    /// A promise that was broken.
    pub(crate) fn violate(&self, invariant: &'static str, how: String) {
        self.tell(format_args!("VIOLATION {invariant}: {how}"));
        self.state().account.violations.push((invariant, how));
    }

    /// Several at once.
    pub(crate) fn violate_all(&self, broken: Broken) {
        for (invariant, how) in broken {
            self.violate(invariant, how);
        }
    }

    /// How far a key reaches.
    pub(crate) fn key_scope(&self) -> KeyScope {
        match self.plan.dialect {
            Dialect::Ietf { .. } => KeyScope::Operation,
            Dialect::Stripe => KeyScope::Tenant,
        }
    }

    /// Asks chance.
    pub(crate) fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.state().rng)
    }

    /// How many turns something lets pass that could go on: mostly none, or nothing would ever meet
    /// at once.
    pub(crate) fn turns(&self, most: u64) -> u64 {
        self.draw(|rng| {
            if rng.in_thousand(250) {
                rng.between(1, most)
            } else {
                0
            }
        })
    }

    /// Passes a time that the seed decides.
    pub(crate) async fn dawdle(&self, low: u64, high: u64) {
        let time = self.draw(|rng| rng.millis(low, high));
        tokio::time::sleep(time).await;
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.clock.start.elapsed()
    }

    /// From now on nothing fails any more.
    pub(crate) fn heal(&self) {
        let mut state = self.state();
        state.healed = true;
        state.outage_until = None;
        drop(state);
        self.tell(format_args!("healed"));
    }

    pub(crate) fn is_healed(&self) -> bool {
        self.state().healed
    }

    /// The store answers nobody for a while.
    pub(crate) fn store_outage(&self, time: Duration) {
        self.state().outage_until = Some(Instant::now() + time);
        self.fault("store_outage");
    }

    /// The other name of an operation that is about to be asked for.
    pub(crate) fn christen(&self, real: OperationId) -> OperationId {
        let mut state = self.state();
        let chance = u32::try_from(state.rng.next() >> 32).unwrap_or(0);
        let names = &mut state.names;
        names.count += 1;
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&names.count.to_be_bytes());
        bytes[12..].copy_from_slice(&chance.to_be_bytes());
        let name = OperationId::from_bytes(bytes);
        names.given.insert(real, name);
        name
    }

    /// The other name of an operation, if it has one.
    pub(crate) fn name(&self, id: OperationId) -> OperationId {
        self.state().names.given.get(&id).copied().unwrap_or(id)
    }

    /// The first final answer to anybody about that operation; this one, if there was none.
    pub(crate) fn first_answer(&self, id: OperationId, answer: &str) -> String {
        let mut state = self.state();
        let first = state.answers.entry(id);
        first.or_insert_with(|| answer.to_owned()).clone()
    }

    /// Decides what becomes of a store call.
    pub(crate) fn fate(&self) -> Fate {
        let (fate, fault) = self.state().fate(self.plan.rates);
        if let Some(fault) = fault {
            self.fault(fault);
        }
        fate
    }

    /// All that happened.
    pub(crate) fn account(&self) -> Account {
        self.state().account.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn fate(&mut self, rates: Rates) -> (Fate, Option<&'static str>) {
        let rng = &mut self.rng;
        let far = rng.in_thousand(50);
        let before = rng.millis(0, if far { 400 } else { 15 });
        let after = rng.millis(0, 10);
        let fine = Fate::Fine { before, after };
        if self.healed {
            return (fine, None);
        }
        if self
            .outage_until
            .is_some_and(|until| Instant::now() < until)
        {
            return if rng.in_thousand(850) {
                (Fate::Fails { before }, Some("store_failed_before"))
            } else {
                (Fate::Lost { before }, Some("store_answer_lost"))
            };
        }
        // Each kind by itself: they are rare, so that it hardly matters which is asked first.
        if rng.in_thousand(rates.fails) {
            (Fate::Fails { before }, Some("store_failed_before"))
        } else if rng.in_thousand(rates.lost) {
            (Fate::Lost { before }, Some("store_answer_lost"))
        } else if rng.in_thousand(rates.late) {
            let by = rng.millis(5, 15_000);
            (Fate::Late { before, by }, Some("store_landed_late"))
        } else if rng.in_thousand(rates.slow) {
            let (by, then) = (rng.millis(100, 12_000), rng.millis(0, 6000));
            (Fate::Slow { by, then }, Some("store_slow"))
        } else {
            (fine, None)
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        BEGINNING.saturating_add(self.start.elapsed())
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

/// An operation's number, for people.
pub(crate) fn number(id: OperationId) -> u32 {
    let [a, b, c, d, ..] = *id.as_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// A panic elsewhere is a fault that was put in; what it left is whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
