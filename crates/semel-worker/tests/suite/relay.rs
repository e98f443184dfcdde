//! The relay over the reference store and a manual clock.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use semel_core::outbox::{Event, EventId, Publishing, Refused, Sink};
use semel_core::store::{Backend, ErasureEpoch, Reply, Request, Result, Verb};
use semel_core::{
    BackgroundJob, Backoff, Clock, Completion, Decision, Error, Memory, OperationId, RecoveryPoint,
    Reserve, Store as _,
};
use semel_testkit::ManualClock;
use semel_worker::{CancellationToken, Relay, Worker};
use tokio::sync::Semaphore;

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(30);
const BACKOFF: Backoff = Backoff {
    every: SECOND,
    max_every: Duration::from_mins(1),
};

/// The broker's reaction to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerReply {
    Yes,
    /// Rejects it.
    No,
    /// Is unavailable.
    Away,
    /// Accepts it, but the confirmation is lost.
    Lost,
    /// Does not answer until the gate opens.
    Silent,
    /// The sink has a bug.
    Panic,
}

type Script = dyn FnMut(&Event, u32) -> BrokerReply + Send;

/// A scripted broker that records what arrived.
struct Broker {
    script: Mutex<Box<Script>>,
    offered: Mutex<BTreeMap<EventId, u32>>,
    arrived: Mutex<Vec<Event>>,
    flying: AtomicUsize,
    most: AtomicUsize,
    gate: Semaphore,
}

impl Broker {
    /// `script` chooses the reply to an event by how often it was offered, from 1.
    fn new(script: impl FnMut(&Event, u32) -> BrokerReply + Send + 'static) -> Arc<Self> {
        Arc::new(Self {
            script: Mutex::new(Box::new(script)),
            offered: Mutex::default(),
            arrived: Mutex::default(),
            flying: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            gate: Semaphore::new(0),
        })
    }

    fn accepting() -> Arc<Self> {
        Self::new(|_, _| BrokerReply::Yes)
    }

    fn set_script(&self, script: impl FnMut(&Event, u32) -> BrokerReply + Send + 'static) {
        *self.script.lock().unwrap() = Box::new(script);
    }

    /// The kinds of the events that arrived, in order.
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
            // Yields, so that a relay that publishes the next event too early would do so now.
            tokio::task::yield_now().await;
            self.flying.fetch_sub(1, Ordering::SeqCst);
            let arrive = || self.arrived.lock().unwrap().push(event.clone());
            match says {
                BrokerReply::Yes => {
                    arrive();
                    Ok(())
                }
                BrokerReply::Lost => {
                    arrive();
                    away()
                }
                BrokerReply::Away => away(),
                BrokerReply::No => Err(Refused::Rejected("it is too large".into())),
                BrokerReply::Silent => {
                    self.gate.acquire().await.unwrap().forget();
                    arrive();
                    Ok(())
                }
                BrokerReply::Panic => panic!("a bug of the sink"),
            }
        })
    }
}

/// Whether a call fails, and then whether it was performed.
type Fault = dyn FnMut(Verb) -> Option<bool> + Send;

/// An outbox with injected failures, before or after a call was performed.
#[derive(Clone)]
struct Store {
    inner: Memory,
    calls: Arc<Mutex<Vec<Verb>>>,
    fault: Arc<Mutex<Box<Fault>>>,
}

impl Store {
    fn count(&self, verb: Verb) -> usize {
        let calls = self.calls.lock().unwrap();
        calls.iter().filter(|called| **called == verb).count()
    }

    /// Every call of `verb` fails without effect, until `None`.
    fn fail_calls(&self, broken: Option<Verb>) {
        *self.fault.lock().unwrap() = Box::new(move |verb| (Some(verb) == broken).then_some(false));
    }
}

impl Backend for Store {
    async fn call(&self, request: Request) -> Result<Reply> {
        let verb = request.verb();
        let fails = [
            Verb::ClaimEvents,
            Verb::MarkSent,
            Verb::HoldBack,
            Verb::DeadLetterEvent,
            Verb::ReleaseRelay,
        ];
        if !fails.contains(&verb) {
            return self.inner.call(request).await;
        }
        self.calls.lock().unwrap().push(verb);
        let fault = (self.fault.lock().unwrap())(verb);
        // Lets other tasks run during the call.
        tokio::task::yield_now().await;
        let failed = |reason: &str| Error::Ambiguous {
            reason: reason.into(),
            source: None,
        };
        match fault {
            None => self.inner.call(request).await,
            Some(false) => Err(failed("nothing was done")),
            Some(true) => {
                self.inner.call(request).await?;
                Err(failed("it was done"))
            }
        }
    }

    /// Every request passes through `call`.
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

struct Fixture {
    clock: ManualClock,
    store: Store,
}

impl Fixture {
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

    /// Writes events, named by aggregate and number, such as `a1`.
    fn write(&self, kinds: &[&str]) {
        for kind in kinds {
            let event = Event::new(*kind, &kind[..1], "{}").unwrap();
            self.store.inner.publish(event);
        }
    }

    async fn outbox_backlog(&self) -> (u64, u64) {
        let backlog = self.store.outbox_backlog().await.unwrap();
        (backlog.waiting, backlog.dead)
    }

    async fn dead(&self) -> Vec<(String, String)> {
        let dead = self.store.dead_events(100).await.unwrap();
        let each = dead.iter();
        each.map(|dead| (dead.event.kind.to_string(), dead.reason.to_string()))
            .collect()
    }

    /// Advances both clocks.
    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
        tokio::time::advance(time).await;
    }
}

fn of_aggregate<'a>(arrived: &'a [String], aggregate: &str) -> Vec<&'a str> {
    let arrived = arrived.iter().map(String::as_str);
    arrived.filter(|kind| kind.starts_with(aggregate)).collect()
}

async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn events_arrive_once_and_in_order_within_their_aggregate() {
    let fixture = Fixture::new();
    let broker = Broker::accepting();
    fixture.write(&["a1", "b1", "a2", "a3", "b2", "c1"]);
    let relay = fixture.relay(&broker);
    assert!(!relay.round().await.unwrap());
    let arrived = broker.arrived();
    assert_eq!(arrived.len(), 6);
    assert_eq!(of_aggregate(&arrived, "a"), ["a1", "a2", "a3"]);
    assert_eq!(of_aggregate(&arrived, "b"), ["b1", "b2"]);
    assert_eq!(fixture.outbox_backlog().await, (0, 0));
    assert!(!relay.round().await.unwrap());
    assert_eq!(broker.offers(), 6);
}

#[tokio::test(start_paused = true)]
async fn store_calls_are_batched() {
    let fixture = Fixture::new();
    let broker = Broker::accepting();
    for number in 0..3000 {
        let event = Event::new("k", format!("aggregate/{number}"), "{}").unwrap();
        fixture.store.inner.publish(event);
    }
    let relay = fixture.relay(&broker);
    while relay.round().await.unwrap() {}
    assert_eq!(broker.offers(), 3000);
    assert_eq!(fixture.outbox_backlog().await, (0, 0));
    let (claims, marks) = (
        fixture.store.count(Verb::ClaimEvents),
        fixture.store.count(Verb::MarkSent),
    );
    assert!(claims <= 6 && marks <= 20, "{claims} claims, {marks} marks");
    let most = broker.most.load(Ordering::SeqCst);
    assert_eq!(most, 256, "as many at once as may be");
}

#[tokio::test(start_paused = true)]
async fn a_refused_event_holds_back_only_its_aggregate() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, offer| match &*event.kind {
        "a2" if offer < 3 => BrokerReply::No,
        _ => BrokerReply::Yes,
    });
    fixture.write(&["a1", "a2", "a3", "b1"]);
    let relay = fixture.relay(&broker);
    relay.round().await.unwrap();
    assert_eq!(of_aggregate(&broker.arrived(), "a"), ["a1"]);
    assert_eq!(of_aggregate(&broker.arrived(), "b"), ["b1"]);
    // Held back: not offered.
    relay.round().await.unwrap();
    fixture.write(&["b2"]);
    relay.round().await.unwrap();
    assert_eq!(broker.offers(), 4);
    fixture.pass(SECOND).await;
    relay.round().await.unwrap();
    assert_eq!(broker.offers(), 5);
    // The pause doubles.
    fixture.pass(SECOND).await;
    relay.round().await.unwrap();
    assert_eq!(broker.offers(), 5);
    fixture.pass(SECOND).await;
    relay.round().await.unwrap();
    assert_eq!(of_aggregate(&broker.arrived(), "a"), ["a1", "a2", "a3"]);
    assert_eq!(fixture.outbox_backlog().await, (0, 0));
}

/// Marking an event lifts the hold on its aggregate, so it must come before a new hold.
#[tokio::test(start_paused = true)]
async fn a_hold_survives_the_marking_of_earlier_events() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a2" => BrokerReply::No,
        "s1" => BrokerReply::Silent,
        _ => BrokerReply::Yes,
    });
    fixture.write(&["s1", "a1", "a2"]);
    let relay = Arc::new(fixture.relay(&broker));
    let round = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.round().await }
    });
    settle().await;
    assert_eq!(fixture.store.count(Verb::HoldBack), 1);
    broker.gate.add_permits(1);
    round.await.unwrap().unwrap();
    relay.round().await.unwrap();
    assert_eq!(
        (broker.offers(), fixture.outbox_backlog().await),
        (3, (1, 0))
    );
}

#[tokio::test(start_paused = true)]
async fn a_poison_event_is_set_aside_and_its_aggregate_continues() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => BrokerReply::No,
        _ => BrokerReply::Yes,
    });
    fixture.write(&["a1", "a2", "b1"]);
    let relay = fixture.relay(&broker).max_tries(3);
    for tries in 1..=3 {
        assert_eq!(fixture.outbox_backlog().await.1, 0, "before try {tries}");
        relay.round().await.unwrap();
        fixture.pass(Duration::from_mins(1)).await;
    }
    let reason = "it is too large".to_owned();
    assert_eq!(fixture.dead().await, [("a1".to_owned(), reason)]);
    relay.round().await.unwrap();
    assert_eq!(of_aggregate(&broker.arrived(), "a"), ["a2"]);
    assert_eq!(fixture.outbox_backlog().await, (0, 1));

    // The operator has fixed the broker and revives the event.
    broker.set_script(|_, _| BrokerReply::Yes);
    let dead = fixture.store.dead_events(1).await.unwrap();
    assert!(fixture.store.revive_event(dead[0].event.id).await.unwrap());
    relay.round().await.unwrap();
    assert_eq!(of_aggregate(&broker.arrived(), "a"), ["a2", "a1"]);
    assert_eq!(fixture.outbox_backlog().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_does_not_inherit_the_tries_of_the_one_before_it() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, offer| match (&*event.kind, offer) {
        ("a1", 3..) => BrokerReply::Yes,
        _ => BrokerReply::No,
    });
    fixture.write(&["a1", "a2"]);
    let relay = fixture.relay(&broker).max_tries(3);
    for _ in 0..3 {
        relay.round().await.unwrap();
        fixture.pass(Duration::from_mins(1)).await;
    }
    assert_eq!(broker.arrived(), ["a1"]);
    // Its first refusal, after two refusals of the event before it.
    assert_eq!(fixture.outbox_backlog().await, (1, 0));
    for _ in 0..2 {
        assert_eq!(fixture.outbox_backlog().await, (1, 0));
        relay.round().await.unwrap();
        fixture.pass(Duration::from_mins(1)).await;
    }
    assert_eq!(fixture.outbox_backlog().await, (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_long_outage_sets_no_event_aside() {
    let fixture = Fixture::new();
    let broker = Broker::new(|_, _| BrokerReply::Away);
    fixture.write(&["a1", "a2", "b1"]);
    let relay = fixture.relay(&broker).max_tries(1);
    for _ in 0..1000 {
        let error = relay.round().await.unwrap_err();
        assert!(error.to_string().contains("it went away"), "{error}");
        fixture.pass(Duration::from_mins(1)).await;
    }
    assert_eq!(fixture.outbox_backlog().await, (3, 0));
    assert_eq!(fixture.store.count(Verb::HoldBack), 0);
    // The relay publishes at once when the broker is back: nothing is held back.
    broker.set_script(|_, _| BrokerReply::Yes);
    relay.round().await.unwrap();
    assert_eq!(of_aggregate(&broker.arrived(), "a"), ["a1", "a2"]);
    assert_eq!(fixture.outbox_backlog().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_a_round_and_what_was_confirmed_before_is_kept() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a2" => BrokerReply::Away,
        _ => BrokerReply::Yes,
    });
    fixture.write(&["a1", "a2", "a3", "b1", "c1", "c2", "c3", "c4"]);
    let relay = fixture.relay(&broker);
    relay.round().await.unwrap_err();
    let arrived = broker.arrived();
    assert_eq!(of_aggregate(&arrived, "a"), ["a1"]);
    // The relay does not offer the remaining events during the outage.
    assert!(of_aggregate(&arrived, "c").len() < 4, "{arrived:?}");
    let left = 8 - u64::try_from(arrived.len()).unwrap();
    assert_eq!(fixture.outbox_backlog().await, (left, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_stays_in_the_outbox_until_it_is_confirmed() {
    let fixture = Fixture::new();
    let broker = Broker::new(|_, _| BrokerReply::Silent);
    fixture.write(&["a1", "a2"]);
    let relay = Arc::new(fixture.relay(&broker));
    let round = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.round().await }
    });
    settle().await;
    assert_eq!(
        (broker.offers(), fixture.outbox_backlog().await),
        (1, (2, 0))
    );
    broker.gate.add_permits(1);
    settle().await;
    // The second event is in flight, and the first is already marked.
    tokio::time::advance(SECOND).await;
    settle().await;
    assert_eq!(
        (broker.offers(), fixture.outbox_backlog().await),
        (2, (1, 0))
    );
    broker.gate.add_permits(1);
    assert!(!round.await.unwrap().unwrap());
    assert_eq!(broker.arrived(), ["a1", "a2"]);
    assert_eq!(fixture.outbox_backlog().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn an_event_with_a_lost_confirmation_is_published_again_under_the_same_id() {
    let fixture = Fixture::new();
    let broker = Broker::new(|_, offer| {
        if offer == 1 {
            BrokerReply::Lost
        } else {
            BrokerReply::Yes
        }
    });
    fixture.write(&["a1"]);
    let relay = fixture.relay(&broker);
    relay.round().await.unwrap_err();
    relay.round().await.unwrap();
    let arrived = broker.arrived.lock().unwrap();
    assert_eq!(arrived.len(), 2);
    assert_eq!(arrived[0], arrived[1]);
}

#[tokio::test(start_paused = true)]
async fn an_unmarked_event_is_marked_later_or_published_again_after_a_crash() {
    let fixture = Fixture::new();
    let broker = Broker::accepting();
    fixture.write(&["a1", "a2", "b1"]);
    fixture.store.fail_calls(Some(Verb::MarkSent));
    let relay = fixture.relay(&broker);
    for _ in 0..3 {
        relay.round().await.unwrap_err();
        assert_eq!(
            (broker.offers(), fixture.outbox_backlog().await),
            (3, (3, 0))
        );
    }
    // The relay remembers what was confirmed; another relay does not.
    let other = fixture.relay(&broker);
    fixture.clock.advance(LEASE);
    other.round().await.unwrap_err();
    assert_eq!(broker.offers(), 6);
    let arrived = broker.arrived();
    assert_eq!(of_aggregate(&arrived, "a"), ["a1", "a2", "a1", "a2"]);
    fixture.store.fail_calls(None);
    relay.round().await.unwrap();
    assert_eq!(
        (broker.offers(), fixture.outbox_backlog().await),
        (6, (0, 0))
    );
}

#[tokio::test(start_paused = true)]
async fn a_sink_that_panics_on_one_event_does_not_delay_the_others() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => BrokerReply::Panic,
        _ => BrokerReply::Yes,
    });
    fixture.write(&["a1", "a2", "b1"]);
    let relay = fixture.relay(&broker).max_tries(2);
    relay.round().await.unwrap();
    assert_eq!(broker.arrived(), ["b1"]);
    fixture.pass(SECOND).await;
    relay.round().await.unwrap();
    relay.round().await.unwrap();
    assert_eq!(broker.arrived(), ["b1", "a2"]);
    let reason = "the sink panicked: a bug of the sink".to_owned();
    assert_eq!(fixture.dead().await, [("a1".to_owned(), reason)]);
}

#[tokio::test(start_paused = true)]
async fn a_second_relay_takes_over_when_the_lease_expires() {
    let fixture = Fixture::new();
    let (first, second) = (Broker::accepting(), Broker::accepting());
    let (one, other) = (fixture.relay(&first), fixture.relay(&second));
    fixture.write(&["a1"]);
    one.round().await.unwrap();
    fixture.write(&["a2"]);
    assert!(!other.round().await.unwrap());
    assert_eq!(second.offers(), 0);
    fixture.pass(LEASE / 2).await;
    other.round().await.unwrap();
    assert_eq!(second.offers(), 0);
    fixture.pass(LEASE / 2).await;
    other.round().await.unwrap();
    assert_eq!(second.arrived(), ["a2"]);
    // The first relay is back, and stands by.
    fixture.write(&["a3"]);
    one.round().await.unwrap();
    assert_eq!(first.arrived(), ["a1"]);
    // The second relay stops, and the first takes over at once.
    other.stop().await;
    one.round().await.unwrap();
    assert_eq!(first.arrived(), ["a1", "a3"]);
}

/// A relay that was paused does not publish the events that it had claimed.
#[tokio::test(start_paused = true)]
async fn no_event_is_published_after_half_of_the_lease() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => BrokerReply::Silent,
        _ => BrokerReply::Yes,
    });
    fixture.write(&["a1", "a2", "b1"]);
    let relay = Arc::new(fixture.relay(&broker));
    let round = tokio::spawn({
        let relay = Arc::clone(&relay);
        async move { relay.round().await }
    });
    settle().await;
    fixture.pass(LEASE / 2).await;
    broker.gate.add_permits(1);
    round.await.unwrap().unwrap();
    // The late confirmation is marked; the next event waits for a new claim.
    assert_eq!(broker.arrived(), ["b1", "a1"]);
    assert_eq!(fixture.outbox_backlog().await, (1, 0));
    relay.round().await.unwrap();
    assert_eq!(broker.arrived(), ["b1", "a1", "a2"]);
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_event_is_abandoned_before_the_lease_expires() {
    let fixture = Fixture::new();
    let broker = Broker::new(|event, _| match &*event.kind {
        "a1" => BrokerReply::Silent,
        _ => BrokerReply::Yes,
    });
    fixture.write(&["a1", "b1"]);
    let relay = fixture.relay(&broker);
    let began = tokio::time::Instant::now();
    let error = relay.round().await.unwrap_err();
    assert!(error.to_string().contains("did not confirm"), "{error}");
    assert!(began.elapsed() < LEASE);
    assert_eq!(fixture.outbox_backlog().await, (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_relays_through_an_outage_and_gives_the_lease_back_on_shutdown() {
    let fixture = Fixture::new();
    let away = Arc::new(AtomicBool::new(true));
    let is_away = Arc::clone(&away);
    let broker = Broker::new(move |_, _| {
        if is_away.load(Ordering::SeqCst) {
            BrokerReply::Away
        } else {
            BrokerReply::Yes
        }
    });
    fixture.write(&["a1"]);
    let shutdown = CancellationToken::new();
    let worker =
        Worker::new(fixture.store.inner.clone()).with_job(Arc::new(fixture.relay(&broker)));
    let running = tokio::spawn(worker.run(shutdown.clone()));
    for _ in 0..480 {
        fixture.pass(SECOND / 4).await;
        settle().await;
    }
    // Two minutes: after growing pauses of up to half a minute, and not four times a second.
    let tried = broker.offers();
    assert!((5..40).contains(&tried), "{tried}");
    away.store(false, Ordering::SeqCst);
    for _ in 0..160 {
        fixture.pass(SECOND / 4).await;
        settle().await;
    }
    assert_eq!(broker.arrived(), ["a1"]);
    fixture.write(&["a2"]);
    for _ in 0..2 {
        fixture.pass(SECOND / 4).await;
        settle().await;
    }
    assert_eq!(broker.arrived(), ["a1", "a2"]);
    shutdown.cancel();
    running.await.unwrap();
    assert_eq!(fixture.store.count(Verb::ReleaseRelay), 1);
    fixture.write(&["a3"]);
    let next = fixture.relay(&broker);
    next.round().await.unwrap();
    assert_eq!(broker.arrived(), ["a1", "a2", "a3"]);
}

/// A deterministic random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// With two relays, a broker that fails in every known way and a store that fails, every event
/// arrives, and the first arrivals of an aggregate are in the order of its events.
#[tokio::test(start_paused = true)]
async fn every_event_arrives_in_order_despite_random_failures() {
    const EVENTS: u64 = 120;
    for seed in 1..=150_u64 {
        let fixture = Fixture::new();
        let mut chance = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut luck = Random(seed.wrapping_mul(0xd134_2543_de82_ef95));
        let broker = Broker::new(move |_, _| match luck.below(24) {
            0..4 => BrokerReply::No,
            4 => BrokerReply::Away,
            5 => BrokerReply::Lost,
            6 => BrokerReply::Panic,
            _ => BrokerReply::Yes,
        });
        let mut trouble = Random(seed.wrapping_mul(0xa076_1d64_78bd_642f));
        *fixture.store.fault.lock().unwrap() = Box::new(move |_| match trouble.below(16) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        });
        let batch = usize::try_from(1 + chance.below(20)).unwrap();
        let in_flight = usize::try_from(1 + chance.below(6)).unwrap();
        let make = || {
            let relay = fixture.relay(&broker).batch(batch).in_flight(in_flight);
            relay.max_tries(u32::MAX)
        };
        let mut relays = [make(), make()];
        let mut written = 0;
        let mut rounds = 0;
        while written < EVENTS || fixture.outbox_backlog().await.0 > 0 {
            for _ in 0..chance.below(12).min(EVENTS - written) {
                let kind = format!(
                    "{}{written:04}",
                    ["a", "b", "c", "d"][(written % 4) as usize]
                );
                fixture.write(&[&kind]);
                written += 1;
            }
            let which = usize::from(chance.below(2) == 0);
            let relay = &relays[which];
            match chance.below(20) {
                // The relay crashes.
                0 => relays[which] = make(),
                1 => relay.stop().await,
                _ => drop(relay.round().await),
            }
            fixture
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
