//! What the relay guarantees, over the reference store and a clock that stands still.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::outbox::{
    Backlog, DeadEvent, Event, EventId, Outbox, Publishing, Refused, Sink, Waiting,
};
use semel_core::store::Result;
use semel_core::{Backoff, Chore, Error, Memory, Owner};
use semel_testkit::ManualClock;
use semel_worker::{CancellationToken, Relay, Worker};
use tokio::sync::Semaphore;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff {
    every: SECOND,
    max_every: Duration::from_mins(1),
};

/// What the broker does with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Says {
    Yes,
    /// It does not want it.
    No,
    /// It is away.
    Away,
    /// It takes it, and the confirmation is lost.
    Lost,
    /// It is silent until the gate opens.
    Silent,
    /// The sink has a bug.
    Panic,
}

type Script = dyn FnMut(&Event, u32) -> Says + Send;

/// A broker that says what it is told to, and remembers what arrived.
struct Broker {
    script: Mutex<Box<Script>>,
    offered: Mutex<BTreeMap<EventId, u32>>,
    arrived: Mutex<Vec<Event>>,
    flying: AtomicUsize,
    most: AtomicUsize,
    gate: Semaphore,
}

impl Broker {
    /// `script` says what becomes of an event when it is offered for the n-th time, from 1.
    fn new(script: impl FnMut(&Event, u32) -> Says + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Box::new(script)),
            offered: Mutex::default(),
            arrived: Mutex::default(),
            flying: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        })
    }

    fn willing() -> Arc<Self> {
        Self::new(|_, _| Says::Yes)
    }

    fn will(&self, script: impl FnMut(&Event, u32) -> Says + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// The kinds of what arrived, in order.
    fn arrived(&self) -> Vec<String> {
        let arrived = self.arrived.lock().unwrap();
        arrived.iter().map(|event| event.kind.to_string()).collect()
    }

    fn offers(&self) -> u32 {
        self.offered.lock().unwrap().values().sum()
    }
}

impl Sink for Broker {
    fn publish<'a>(&'a self, event: &'a Event) -> Publishing<'a> {
        let offer = {
            let mut offered = self.offered.lock().unwrap();
            let offers = offered.entry(event.id).or_default();
            *offers += 1;
            *offers
        };
        let says = (self.script.lock().unwrap())(event, offer);
        let away = || Err(Refused::Unavailable("it went away".into()));
        Box::pin(async move {
            let flying = self.flying.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(flying, Ordering::SeqCst);
            // Whoever would publish the next one too early gets the chance to.
            tokio::task::yield_now().await;
            self.flying.fetch_sub(1, Ordering::SeqCst);
            let arrive = || self.arrived.lock().unwrap().push(event.clone());
            match says {
                Says::Yes => {
                    arrive();
                    Ok(())
                }
                Says::Lost => {
                    arrive();
                    away()
                }
                Says::Away => away(),
                Says::No => Err(Refused::Rejected("it is too large".into())),
                Says::Silent => {
                    self.gate.acquire().await.unwrap().forget();
                    arrive();
                    Ok(())
                }
                Says::Panic => panic!("a bug of the sink"),
            }
        })
    }
}

/// Calls of the outbox that fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verb {
    Claim,
    Mark,
    HoldBack,
    SetAside,
    StandDown,
}

/// Whether a call fails, and then whether it was performed.
type Fault = dyn FnMut(Verb) -> Option<bool> + Send;

/// An outbox whose calls fail when they are told to, before or after they were performed.
#[derive(Clone)]
struct Store {
    inner: Memory,
    calls: Arc<Mutex<Vec<Verb>>>,
    fault: Arc<Mutex<Box<Fault>>>,
}

impl Store {
    async fn call<T>(&self, verb: Verb, call: impl Future<Output = Result<T>>) -> Result<T> {
        self.calls.lock().unwrap().push(verb);
        let fault = (self.fault.lock().unwrap())(verb);
        // So that others have their turn while the store works.
        tokio::task::yield_now().await;
        let failed = |reason: &str| Error::Ambiguous {
            reason: reason.into(),
            source: None,
        };
        match fault {
            None => call.await,
            Some(false) => Err(failed("nothing was done")),
            Some(true) => {
                call.await?;
                Err(failed("it was done"))
            }
        }
    }

    fn count(&self, verb: Verb) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|called| **called == verb).count()
    }

    /// Every call of `verb` fails without effect, until told otherwise.
    fn fails(&self, broken: Option<Verb>) {
        *self.fault.lock().unwrap() = Box::new(move |verb| (Some(verb) == broken).then_some(false));
    }
}

impl Outbox for Store {
    async fn claim_events(
        &self,
        relay: Owner,
        lease: Duration,
        limit: usize,
    ) -> Result<Vec<Waiting>> {
        let claim = self.inner.claim_events(relay, lease, limit);
        self.call(Verb::Claim, claim).await
    }

    async fn mark_sent(&self, events: Vec<EventId>) -> Result<()> {
        self.call(Verb::Mark, self.inner.mark_sent(events)).await
    }

    async fn hold_back(&self, event: EventId, reason: &str, backoff: Backoff) -> Result<()> {
        let hold = self.inner.hold_back(event, reason, backoff);
        self.call(Verb::HoldBack, hold).await
    }

    async fn set_aside(&self, event: EventId, reason: &str) -> Result<()> {
        let set_aside = self.inner.set_aside(event, reason);
        self.call(Verb::SetAside, set_aside).await
    }

    async fn dead_events(&self, limit: usize) -> Result<Vec<DeadEvent>> {
        self.inner.dead_events(limit).await
    }

    async fn revive(&self, event: EventId) -> Result<bool> {
        self.inner.revive(event).await
    }

    async fn backlog(&self) -> Result<Backlog> {
        self.inner.backlog().await
    }

    async fn stand_down(&self, relay: Owner) -> Result<()> {
        self.call(Verb::StandDown, self.inner.stand_down(relay))
            .await
    }
}

struct World {
    clock: ManualClock,
    store: Store,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::default();
        let store = Store {
            inner: Memory::new(Arc::new(clock.clone())),
            calls: Arc::default(),
            fault: Arc::new(Mutex::new(Box::new(|_| None))),
        };
        Self { clock, store }
    }

    fn relay(&self, broker: &Arc<Broker>) -> Relay<Store> {
        let sink: Arc<dyn Sink> = Arc::clone(broker) as Arc<dyn Sink>;
        Relay::new(self.store.clone(), sink)
            .lease(LEASE)
            .backoff(BACKOFF)
    }

    /// Writes events; each is called by its aggregate and its number, such as `a1`.
    fn write(&self, kinds: &[&str]) {
        for kind in kinds {
            let event = Event::new(*kind, &kind[..1], "{}").unwrap();
            self.store.inner.publish(event);
        }
    }

    async fn backlog(&self) -> (u64, u64) {
        let backlog = self.store.backlog().await.unwrap();
        (backlog.waiting, backlog.dead)
    }

    async fn dead(&self) -> Vec<(String, String)> {
        let dead = self.store.dead_events(100).await.unwrap();
        let each = dead.iter();
        each.map(|dead| (dead.event.kind.to_string(), dead.reason.to_string()))
            .collect()
    }

    /// Both clocks go on.
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        tokio::time::advance(time).await;
    }
}

fn only<'a>(arrived: &'a [String], aggregate: &str) -> Vec<&'a str> {
    let arrived = arrived.iter().map(String::as_str);
    arrived.filter(|kind| kind.starts_with(aggregate)).collect()
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_written_arrives_once_and_in_order_within_its_aggregate() {
    let world = World::new();
    let broker = Broker::willing();
    world.write(&["a1", "b1", "a2", "a3", "b2", "c1"]);
    let relay = world.relay(&broker);
    assert!(!relay.round().await.unwrap());
    let arrived = broker.arrived();
    assert_eq!(arrived.len(), 6);
    assert_eq!(only(&arrived, "a"), ["a1", "a2", "a3"]);
    assert_eq!(only(&arrived, "b"), ["b1", "b2"]);
    assert_eq!(world.backlog().await, (0, 0));
    assert!(!relay.round().await.unwrap());
    assert_eq!(broker.offers(), 6);
}

#[tokio::test(start_paused = true)]
async fn the_store_is_asked_by_the_batch_and_not_by_the_event() {
    let world = World::new();
    let broker = Broker::willing();
    for number in 0..3000 {
        let event = Event::new("k", format!("aggregate/{number}"), "{}").unwrap();
        world.store.inner.publish(event);
    }
    let relay = world.relay(&broker);
    while relay.round().await.unwrap() {}
    assert_eq!(broker.offers(), 3000);
    assert_eq!(world.backlog().await, (0, 0));
    let (claims, marks) = (
        world.store.count(Verb::Claim),
        world.store.count(Verb::Mark),
    );
    assert!(claims <= 6 && marks <= 20, "{claims} claims, {marks} marks");
    let most = broker.most.load(Ordering::SeqCst);
    assert_eq!(most, 256, "as many at once as may be");
}

#[tokio::test(start_paused = true)]
async fn what_follows_a_refused_event_waits_for_it_and_nothing_else_does() {
    let world = World::new();
    let broker = Broker::new(|event, offer| match &*event.kind {
        "a2" if offer < 3 => Says::No,
        _ => Says::Yes,
    });
    world.write(&["a1", "a2", "a3", "b1"]);
    let relay = world.relay(&broker);
    relay.round().await.unwrap();
    assert_eq!(only(&broker.arrived(), "a"), ["a1"]);
    assert_eq!(only(&broker.arrived(), "b"), ["b1"]);
    // Held back: not even tried.
    relay.round().await.unwrap();
    world.write(&["b2"]);
    relay.round().await.unwrap();
    assert_eq!(broker.offers(), 4);
    world.pass(SECOND).await;
    relay.round().await.unwrap();
    assert_eq!(broker.offers(), 5);
    // The pause doubles.
    world.pass(SECOND).await;
    relay.round().await.unwrap();
    assert_eq!(broker.offers(), 5);
    world.pass(SECOND).await;
    relay.round().await.unwrap();
    assert_eq!(only(&broker.arrived(), "a"), ["a1", "a2", "a3"]);
    assert_eq!(world.backlog().await, (0, 0));
}

/// Marking an event lifts the hold on its aggregate, and comes before a hold that is meant to stay.
#[tokio::test(start_paused = true)]
async fn a_hold_outlives_the_marking_of_what_came_before() {
    let world = World::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a2" => Says::No,
        "s1" => Says::Silent,
        _ => Says::Yes,
    });
    world.write(&["s1", "a1", "a2"]);
    let relay = Arc::new(world.relay(&broker));
    let round = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.round().await }
    });
    settle().await;
    assert_eq!(world.store.count(Verb::HoldBack), 1);
    broker.gate.add_permits(1);
    round.await.unwrap().unwrap();
    relay.round().await.unwrap();
    assert_eq!((broker.offers(), world.backlog().await), (3, (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_poison_event_is_set_aside_and_the_rest_of_its_aggregate_goes_on() {
    let world = World::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => Says::No,
        _ => Says::Yes,
    });
    world.write(&["a1", "a2", "b1"]);
    let relay = world.relay(&broker).max_tries(3);
    for tries in 1..=3 {
        assert_eq!(world.backlog().await.1, 0, "before try {tries}");
        relay.round().await.unwrap();
        world.pass(Duration::from_mins(1)).await;
    }
    let reason = "it is too large".to_owned();
    assert_eq!(world.dead().await, [("a1".to_owned(), reason)]);
    relay.round().await.unwrap();
    assert_eq!(only(&broker.arrived(), "a"), ["a2"]);
    assert_eq!(world.backlog().await, (0, 1));

    // Somebody has mended the broker, and says so.
    broker.will(|_, _| Says::Yes);
    let dead = world.store.dead_events(1).await.unwrap();
    assert!(world.store.revive(dead[0].event.id).await.unwrap());
    relay.round().await.unwrap();
    assert_eq!(only(&broker.arrived(), "a"), ["a2", "a1"]);
    assert_eq!(world.backlog().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_does_not_inherit_the_tries_of_the_one_before_it() {
    let world = World::new();
    let broker = Broker::new(|event, offer| match (&*event.kind, offer) {
        ("a1", 3..) => Says::Yes,
        _ => Says::No,
    });
    world.write(&["a1", "a2"]);
    let relay = world.relay(&broker).max_tries(3);
    for _ in 0..3 {
        relay.round().await.unwrap();
        world.pass(Duration::from_mins(1)).await;
    }
    assert_eq!(broker.arrived(), ["a1"]);
    // Its first refusal, after the second of the other one.
    assert_eq!(world.backlog().await, (1, 0));
    for _ in 0..2 {
        assert_eq!(world.backlog().await, (1, 0));
        relay.round().await.unwrap();
        world.pass(Duration::from_mins(1)).await;
    }
    assert_eq!(world.backlog().await, (0, 1));
}

#[tokio::test(start_paused = true)]
async fn an_outage_sets_nothing_aside_however_long_it_is() {
    let world = World::new();
    let broker = Broker::new(|_, _| Says::Away);
    world.write(&["a1", "a2", "b1"]);
    let relay = world.relay(&broker).max_tries(1);
    for _ in 0..1000 {
        let error = relay.round().await.unwrap_err();
        assert!(error.to_string().contains("it went away"), "{error}");
        world.pass(Duration::from_mins(1)).await;
    }
    assert_eq!(world.backlog().await, (3, 0));
    assert_eq!(world.store.count(Verb::HoldBack), 0);
    // It is tried again at once when the broker is back: nothing is held back.
    broker.will(|_, _| Says::Yes);
    relay.round().await.unwrap();
    assert_eq!(only(&broker.arrived(), "a"), ["a1", "a2"]);
    assert_eq!(world.backlog().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_a_round_and_what_was_confirmed_before_is_kept() {
    let world = World::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a2" => Says::Away,
        _ => Says::Yes,
    });
    world.write(&["a1", "a2", "a3", "b1", "c1", "c2", "c3", "c4"]);
    let relay = world.relay(&broker);
    relay.round().await.unwrap_err();
    let arrived = broker.arrived();
    assert_eq!(only(&arrived, "a"), ["a1"]);
    // It does not go on to the end while the broker is away.
    assert!(only(&arrived, "c").len() < 4, "{arrived:?}");
    let left = 8 - u64::try_from(arrived.len()).unwrap();
    assert_eq!(world.backlog().await, (left, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_is_there_until_the_broker_has_confirmed_it() {
    let world = World::new();
    let broker = Broker::new(|_, _| Says::Silent);
    world.write(&["a1", "a2"]);
    let relay = Arc::new(world.relay(&broker));
    let round = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.round().await }
    });
    settle().await;
    assert_eq!((broker.offers(), world.backlog().await), (1, (2, 0)));
    broker.gate.add_permits(1);
    settle().await;
    // The second is on its way, and the first is marked although the round is not over.
    tokio::time::advance(SECOND).await;
    settle().await;
    assert_eq!((broker.offers(), world.backlog().await), (2, (1, 0)));
    broker.gate.add_permits(1);
    assert!(!round.await.unwrap().unwrap());
    assert_eq!(broker.arrived(), ["a1", "a2"]);
    assert_eq!(world.backlog().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_that_was_lost_is_asked_for_again_under_the_same_id() {
    let world = World::new();
    let broker = Broker::new(|_, offer| if offer == 1 { Says::Lost } else { Says::Yes });
    world.write(&["a1"]);
    let relay = world.relay(&broker);
    relay.round().await.unwrap_err();
    relay.round().await.unwrap();
    let arrived = broker.arrived.lock().unwrap();
    assert_eq!(arrived.len(), 2);
    assert_eq!(arrived[0], arrived[1]);
}

#[tokio::test(start_paused = true)]
async fn what_could_not_be_marked_is_marked_later_and_after_a_crash_published_again() {
    let world = World::new();
    let broker = Broker::willing();
    world.write(&["a1", "a2", "b1"]);
    world.store.fails(Some(Verb::Mark));
    let relay = world.relay(&broker);
    for _ in 0..3 {
        relay.round().await.unwrap_err();
        assert_eq!((broker.offers(), world.backlog().await), (3, (3, 0)));
    }
    // It knows what was confirmed; another does not.
    let other = world.relay(&broker);
    world.clock.advance(LEASE);
    other.round().await.unwrap_err();
    assert_eq!(broker.offers(), 6);
    let arrived = broker.arrived();
    assert_eq!(only(&arrived, "a"), ["a1", "a2", "a1", "a2"]);
    world.store.fails(None);
    relay.round().await.unwrap();
    assert_eq!((broker.offers(), world.backlog().await), (6, (0, 0)));
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_over_one_event_does_not_hold_up_the_others() {
    let world = World::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => Says::Panic,
        _ => Says::Yes,
    });
    world.write(&["a1", "a2", "b1"]);
    let relay = world.relay(&broker).max_tries(2);
    relay.round().await.unwrap();
    assert_eq!(broker.arrived(), ["b1"]);
    world.pass(SECOND).await;
    relay.round().await.unwrap();
    relay.round().await.unwrap();
    assert_eq!(broker.arrived(), ["b1", "a2"]);
    let reason = "the sink panicked: a bug of the sink".to_owned();
    assert_eq!(world.dead().await, [("a1".to_owned(), reason)]);
}

#[tokio::test(start_paused = true)]
async fn one_relays_and_the_other_takes_over_after_its_lease() {
    let world = World::new();
    let (first, second) = (Broker::willing(), Broker::willing());
    let (one, other) = (world.relay(&first), world.relay(&second));
    world.write(&["a1"]);
    one.round().await.unwrap();
    world.write(&["a2"]);
    assert!(!other.round().await.unwrap());
    assert_eq!(second.offers(), 0);
    world.pass(LEASE / 2).await;
    other.round().await.unwrap();
    assert_eq!(second.offers(), 0);
    world.pass(LEASE / 2).await;
    other.round().await.unwrap();
    assert_eq!(second.arrived(), ["a2"]);
    // The first is back, and stands by.
    world.write(&["a3"]);
    one.round().await.unwrap();
    assert_eq!(first.arrived(), ["a1"]);
    // The second stops: at once.
    other.stop().await;
    one.round().await.unwrap();
    assert_eq!(first.arrived(), ["a1", "a3"]);
}

/// A relay that stood still does not hand out what it had claimed.
#[tokio::test(start_paused = true)]
async fn nothing_is_handed_out_after_half_of_the_lease() {
    let world = World::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => Says::Silent,
        _ => Says::Yes,
    });
    world.write(&["a1", "a2", "b1"]);
    let relay = Arc::new(world.relay(&broker));
    let round = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.round().await }
    });
    settle().await;
    world.pass(LEASE / 2).await;
    broker.gate.add_permits(1);
    round.await.unwrap().unwrap();
    // It was confirmed late, and is marked; the next one waits for a new claim.
    assert_eq!(broker.arrived(), ["b1", "a1"]);
    assert_eq!(world.backlog().await, (1, 0));
    relay.round().await.unwrap();
    assert_eq!(broker.arrived(), ["b1", "a1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_never_answers_is_given_up_before_the_lease_is_over() {
    let world = World::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => Says::Silent,
        _ => Says::Yes,
    });
    world.write(&["a1", "b1"]);
    let relay = world.relay(&broker);
    let began = tokio::time::Instant::now();
    let error = relay.round().await.unwrap_err();
    assert!(error.to_string().contains("did not confirm"), "{error}");
    assert!(began.elapsed() < LEASE);
    assert_eq!(world.backlog().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_relays_through_an_outage_and_hands_over_when_it_stops() {
    let world = World::new();
    let away = Arc::new(AtomicBool::new(true));
    let is_away = Arc::clone(&away);
    let broker = Broker::new(move |_, _| {
        if is_away.load(Ordering::SeqCst) {
            Says::Away
        } else {
            Says::Yes
        }
    });
    world.write(&["a1"]);
    let shutdown = CancellationToken::new();
    let worker = Worker::new(world.store.inner.clone()).also(Arc::new(world.relay(&broker)));
    let running = tokio::spawn(worker.run(shutdown.clone()));
    for _ in 0..480 {
        world.pass(SECOND / 4).await;
        settle().await;
    }
    // Two minutes: after growing pauses of up to half a minute, and not four times a second.
    let tried = broker.offers();
    assert!((5..40).contains(&tried), "{tried}");
    away.store(false, Ordering::SeqCst);
    for _ in 0..160 {
        world.pass(SECOND / 4).await;
        settle().await;
    }
    assert_eq!(broker.arrived(), ["a1"]);
    world.write(&["a2"]);
    for _ in 0..2 {
        world.pass(SECOND / 4).await;
        settle().await;
    }
    assert_eq!(broker.arrived(), ["a1", "a2"]);
    shutdown.cancel();
    running.await.unwrap();
    assert_eq!(world.store.count(Verb::StandDown), 1);
    world.write(&["a3"]);
    let next = world.relay(&broker);
    next.round().await.unwrap();
    assert_eq!(broker.arrived(), ["a1", "a2", "a3"]);
}

/// Numbers that look like chance, and are the same every time.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Two relays, a broker that does everything that brokers do and a store that fails: every event
/// arrives, and the first arrivals of an aggregate are in the order in which it was written.
#[tokio::test(start_paused = true)]
async fn whatever_fails_everything_arrives_and_first_arrivals_are_in_order() {
    const EVENTS: u64 = 120;
    for seed in 1..=150_u64 {
        let world = World::new();
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut luck = Chance(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let broker = Broker::new(move |_, _| match luck.below(24) {
            0..4 => Says::No,
            4 => Says::Away,
            5 => Says::Lost,
            6 => Says::Panic,
            _ => Says::Yes,
        });
        let mut trouble = Chance(seed.wrapping_mul(0xa076_1d64_78bd_642f));
        *world.store.fault.lock().unwrap() = Box::new(move |_| match trouble.below(16) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        });
        let batch = usize::try_from(1 + chance.below(20)).unwrap();
        let in_flight = usize::try_from(1 + chance.below(6)).unwrap();
        let make = || {
            let relay = world.relay(&broker).batch(batch).in_flight(in_flight);
            relay.max_tries(u32::MAX)
        };
        let mut relays = [make(), make()];
        let mut written = 0;
        let mut rounds = 0;
        while written < EVENTS || world.backlog().await.0 > 0 {
            for _ in 0..chance.below(12).min(EVENTS - written) {
                let kind = format!(
                    "{}{written:04}",
                    ["a", "b", "c", "d"][(written % 4) as usize]
                );
                world.write(&[&kind]);
                written += 1;
            }
            let which = usize::from(chance.below(2) == 0);
            let relay = &relays[which];
            match chance.below(20) {
                // It crashes.
                0 => relays[which] = make(),
                1 => relay.stop().await,
                _ => drop(relay.round().await),
            }
            world
                .pass(SECOND * u32::try_from(chance.below(40)).unwrap())
                .await;
            rounds += 1;
            assert!(rounds < 20_000, "seed {seed}: it does not come to an end");
        }
        let mut seen = BTreeSet::new();
        let mut firsts = BTreeMap::<String, Vec<String>>::new();
        for kind in broker.arrived() {
            if seen.insert(kind.clone()) {
                firsts.entry(kind[..1].to_owned()).or_default().push(kind);
            }
        }
        assert_eq!(seen.len() as u64, EVENTS, "seed {seed}");
        for kinds in firsts.values() {
            assert!(kinds.is_sorted(), "seed {seed}: {kinds:?}");
        }
    }
}
