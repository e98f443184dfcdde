//! Contracts: what a layer publishes, which changes it refuses, and which it follows.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::contract::{MAX_RULE_SETS, OperationMatch};
use semel_core::fingerprint::Options;
use semel_core::{Memory, Store as _};
use semel_http::{ContractError, KeyRule, Layer, Route, route, tenant};
use semel_testkit::ManualClock;

use crate::support::{Answer, answer, send};

/// A store, and a service that counts what it executes.
#[derive(Clone)]
struct World {
    store: Memory,
    clock: ManualClock,
    executions: Arc<AtomicUsize>,
}

impl World {
    fn new() -> Self {
        let clock = ManualClock::default();
        Self {
            store: Memory::new(Arc::new(clock.clone())),
            clock,
            executions: Arc::default(),
        }
    }

    /// A layer of another process, without routes.
    fn process(&self) -> Layer<Memory> {
        let layer = Layer::new(self.store.clone()).tenant(tenant::only_one());
        layer.tenant_rule("none")
    }

    fn serving(&self, pattern: &str, change: impl FnOnce(Route) -> Route) -> Layer<Memory> {
        self.process().route(pattern, change)
    }

    async fn pay(&self, layer: &Layer<Memory>, path: &str, key: &str) -> Answer {
        let executions = Arc::clone(&self.executions);
        send(layer, path, key, move |_| {
            executions.fetch_add(1, Ordering::SeqCst);
            async { answer(201, "paid") }
        })
        .await
    }

    async fn executes(&self, layer: &Layer<Memory>, path: &str, key: &str) {
        let before = self.executions.load(Ordering::SeqCst);
        let paid = self.pay(layer, path, key).await;
        assert!(paid.status == 201 && !paid.is_replay(), "{paid:?}");
        assert_eq!(self.executions.load(Ordering::SeqCst), before + 1);
    }

    async fn replays(&self, layer: &Layer<Memory>, path: &str, key: &str) {
        let before = self.executions.load(Ordering::SeqCst);
        let paid = self.pay(layer, path, key).await;
        assert!(paid.is_replay(), "{paid:?}");
        assert_eq!(self.executions.load(Ordering::SeqCst), before);
    }
}

fn named(name: &'static str) -> impl FnOnce(Route) -> Route {
    move |route| route.operation(name)
}

fn ignoring(pointer: String) -> impl FnOnce(Route) -> Route {
    move |route| {
        route.operation("pay").fingerprint(Options {
            ignore: vec![pointer],
            ..Options::default()
        })
    }
}

async fn refusal(layer: &Layer<Memory>) -> String {
    match layer.publish().await {
        Err(error @ ContractError::Refused(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn refused_layer_executes_nothing_until_the_window_has_ended() {
    let world = World::new();
    let old = world.serving("POST /payments", named("create_payment"));
    world.executes(&old, "/payments", "k").await;

    let new = world.serving("POST /payments", named("pay"));
    for key in ["k", "another"] {
        let refused = world.pay(&new, "/payments", key).await;
        refused.refuses(503, "idempotency_contract_changed");
    }
    let message = refusal(&new).await;
    let named_in_it =
        "POST /payments: operation \"create_payment\" → operation \"pay\"; 0 unfinished";
    assert!(message.contains(named_in_it), "{message}");
    world.replays(&old, "/payments", "k").await;

    world.clock.advance(Duration::from_hours(24));
    let new = world.serving("POST /payments", named("pay"));
    new.publish().await.unwrap();
    world.executes(&new, "/payments", "after").await;
}

#[tokio::test]
async fn unfinished_record_keeps_the_contract_after_every_window() {
    let world = World::new();
    let old = world.serving("POST /payments", named("create_payment"));
    let lost = send(&old, "/payments", "k", |_| async { answer(503, "?") }).await;
    assert_eq!(lost.status, 503);
    world.clock.advance(Duration::from_hours(24 * 365));
    let message = refusal(&world.serving("POST /payments", named("pay"))).await;
    assert!(
        message.contains("1 unfinished and 0 replayable"),
        "{message}"
    );
}

#[tokio::test]
async fn renamed_operation_finds_its_records_by_its_first_name() {
    let world = World::new();
    let unnamed = world.process().defaults(|route| route);
    world.executes(&unnamed, "/payments", "k").await;
    let renamed = |name, was| {
        let change = move |route: Route| route.operation(name).was(was);
        world.serving("POST /payments", change)
    };
    world
        .replays(&renamed("pay", "POST /payments"), "/payments", "k")
        .await;
    world
        .replays(&renamed("charge", "POST /payments"), "/payments", "k")
        .await;
    refusal(&renamed("pay", "pay")).await;
}

#[tokio::test]
async fn a_name_for_a_path_with_parameters_is_refused_while_its_records_exist() {
    let world = World::new();
    let unnamed = world.process();
    world.executes(&unnamed, "/orders/7/refunds", "k").await;
    let named = world.serving("POST /orders/{id}/refunds", named("refund"));
    let Err(ContractError::Refused(changes)) = named.publish().await else {
        panic!("it is published");
    };
    let [change] = &changes[..] else {
        panic!("{changes:?}");
    };
    let prefix = OperationMatch::Prefix("POST /orders/".into());
    assert_eq!((&change.operations, change.in_use.replayable), (&prefix, 1));
}

/// A request would match another route than before, although no route was changed.
#[tokio::test]
async fn a_more_specific_route_is_refused_while_the_general_one_has_records() {
    let world = World::new();
    let general = world.serving("POST /{*rest}", named("any"));
    world.executes(&general, "/payments", "k").await;
    let specific = general.clone().route("POST /payments", named("pay"));
    assert!(refusal(&specific).await.contains("POST /payments"));
    // With its identity it is the same operation.
    let same = general.route("POST /payments", named("any"));
    same.publish().await.unwrap();
    world.replays(&same, "/payments", "k").await;
    // The other way round: the route is removed, and the general one takes over.
    let removed = world.serving("POST /{*rest}", named("all"));
    refusal(&removed).await;
}

/// Routes are compared as requests are matched: folded.
#[tokio::test]
async fn another_spelling_of_a_route_is_the_same_and_an_exact_match_is_not() {
    let world = World::new();
    let old = world.serving("POST /Payments", |route| route);
    world.executes(&old, "/payments", "k").await;
    let respelled = world.serving("POST //payments/", |route| route);
    respelled.publish().await.unwrap();
    world.replays(&respelled, "/payments", "k").await;
    let with_name = |route: Route| route.operation("pay").was("POST /payments");
    let renamed = world.serving("POST /PAYMENTS", with_name);
    world.replays(&renamed, "/payments", "k").await;
    let exact = world.serving("POST /payments", Route::match_exactly);
    assert!(refusal(&exact).await.contains("matched exactly"));
    // A request of the new route was one of the old.
    let specific = world.serving("POST /payments/{id}", named("other"));
    specific.publish().await.unwrap();
    let parameters = world.serving("POST /Orders/{id}/Refunds", |route| route);
    world.executes(&parameters, "/orders/7/refunds", "k").await;
    let named = world.serving("POST /orders/{id}/refunds", named("refund"));
    let Err(ContractError::Refused(changes)) = named.publish().await else {
        panic!("it is published");
    };
    let prefix = OperationMatch::Prefix("POST /orders/".into());
    assert_eq!(changes[0].operations, prefix);
}

#[tokio::test]
async fn other_ways_to_identify_a_record_are_refused() {
    let world = World::new();
    let old = world.serving("POST /payments", named("pay"));
    world.executes(&old, "/payments", "k").await;
    let same = || world.serving("POST /payments", named("pay"));
    same().publish().await.unwrap();
    let header = same().header(http::HeaderName::from_static("x-request-id"));
    let dialect = same().dialect(semel_core::key::Dialect::Stripe);
    let unguarded = world.serving("POST /payments", |route| route.key(KeyRule::Ignored));
    for changed in [header, dialect, same().tenant_rule("jwt:sub"), unguarded] {
        refusal(&changed).await;
    }
    // What a key must look like and how a request waits identify nothing.
    let strict = same().dialect(semel_core::key::Dialect::Ietf { lenient: false });
    strict.publish().await.unwrap();
}

#[tokio::test]
async fn accepted_change_is_published_in_both_directions() {
    let world = World::new();
    let old = world.serving("POST /payments", named("create_payment"));
    world.executes(&old, "/payments", "k").await;
    let new = world.serving("POST /payments", named("pay"));
    refusal(&new).await;
    new.accept_contracts("ada", "OPS-412").await.unwrap();
    world.executes(&new, "/payments", "k").await;
    let again = world.serving("POST /payments", named("pay"));
    // What was accepted is not counted at every start.
    let plan = again.plan_contracts().await.unwrap();
    let [change] = &plan.changes[..] else {
        panic!("{plan:?}");
    };
    assert!(change.accepted && change.in_use.all == 0, "{change:?}");
    assert!(
        change
            .to_string()
            .ends_with("→ operation \"pay\" (accepted)")
    );
    again.publish().await.unwrap();
    let back = world.serving("POST /payments", named("create_payment"));
    back.publish().await.unwrap();
    let other = world.serving("POST /payments", named("charge"));
    refusal(&other).await;
    let published = world.store.contracts().await.unwrap().contracts;
    let accepted = &published.acceptances[0];
    assert_eq!((&*accepted.by, &*accepted.reason), ("ada", "OPS-412"));
}

/// Each process has other rules; every record is found by each of them.
#[tokio::test]
async fn a_record_is_replayed_under_all_later_rules_until_there_are_too_many() {
    let world = World::new();
    let process =
        |number: usize| world.serving("POST /payments", ignoring(format!("/trace{number}")));
    for number in 0..MAX_RULE_SETS {
        let layer = process(number);
        world
            .executes(&layer, "/payments", &format!("k{number}"))
            .await;
        for earlier in 0..number {
            world
                .replays(&layer, "/payments", &format!("k{earlier}"))
                .await;
        }
        // And a process that still runs the first rules.
        let key = format!("k{number}");
        world.replays(&process(0), "/payments", &key).await;
    }
    let refused = process(MAX_RULE_SETS).publish().await;
    assert!(
        matches!(&refused, Err(ContractError::TooManyRules { operation }) if **operation == *"pay"),
        "{refused:?}"
    );
    // Once no record was made by the oldest rules, they make room.
    world.clock.advance(Duration::from_hours(24 * 40));
    while world.store.expire(100).await.unwrap() > 0 {}
    world.clock.advance(Duration::from_hours(24 * 40));
    while world.store.purge(100).await.unwrap() > 0 {}
    process(MAX_RULE_SETS).publish().await.unwrap();
}

/// A record whose rules are gone cannot be compared: it is neither misuse nor executed.
#[tokio::test]
async fn a_record_with_unreadable_rules_is_refused_for_now() {
    let world = World::new();
    let old = world.serving("POST /payments", ignoring("/trace".to_owned()));
    world.executes(&old, "/payments", "k").await;
    let published = world.store.contracts().await.unwrap();
    let mut contracts = published.contracts;
    contracts.rule_sets.clear();
    let replaced = world.store.publish_contracts(published.revision, contracts);
    assert!(replaced.await.unwrap());
    let new = world.serving("POST /payments", named("pay"));
    let refused = world.pay(&new, "/payments", "k").await;
    refused.refuses(503, "idempotency_store_unavailable");
    // The process that has them publishes them again, and then only looks.
    old.keep_published().await.unwrap();
    world.replays(&new, "/payments", "k").await;
    let revision = world.store.contracts().await.unwrap().revision;
    old.keep_published().await.unwrap();
    assert_eq!(world.store.contracts().await.unwrap().revision, revision);
}

#[tokio::test]
async fn was_with_the_name_of_another_operation_is_an_error() {
    let world = World::new();
    let layer = world.serving("POST /payments", named("pay"));
    let wrong = layer.clone().try_route("POST /charges", |route| {
        route.operation("charge").was("pay")
    });
    assert!(matches!(wrong, Err(route::Error::Was { .. })), "{wrong:?}");
    let wrong = layer
        .clone()
        .try_route("POST /charges", |route| route.was("charge"));
    assert!(matches!(wrong, Err(route::Error::Was { .. })), "{wrong:?}");
    // The records of one operation would have two names.
    let wrong = layer.try_route("POST /charges", |route| {
        route.operation("pay").was("charge")
    });
    assert!(matches!(wrong, Err(route::Error::Was { .. })), "{wrong:?}");
    let unnamed = world.serving("POST /payments", |route| route);
    let wrong = unnamed.try_route("POST /charges", |route| {
        route.operation("charge").was("POST /payments")
    });
    assert!(matches!(wrong, Err(route::Error::Was { .. })), "{wrong:?}");
}
