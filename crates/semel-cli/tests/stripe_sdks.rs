//! The `stripe` dialect as Stripe's own SDKs take it: their error classes, and their retries.
//!
//! Real SDKs, the real gateway, and a stub behind it. Each SDK's side is a small program beside
//! this file that does as it is told; what it sends and gets is heard on the wire.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test may fail loudly, and says when it skips"
)]

#[path = "stripe_sdks/upstream.rs"]
mod upstream;
#[path = "stripe_sdks/wire.rs"]
mod wire;
#[path = "stripe_sdks/world.rs"]
mod world;

use std::time::Duration;

use axum::http::StatusCode;

use upstream::Behaviour;
use wire::Heard;
use world::{Order, Sdk, Seen, World};

/// A hang is a failure. Each scenario takes a second or two, most of it the SDKs' own pauses.
const PATIENCE: Duration = Duration::from_mins(2);

const REPLAYED: &str = "idempotent-replayed";
const SHOULD_RETRY: &str = "stripe-should-retry";

const ORDER: Order = Order {
    api_key: "sk_test_one",
    account: None,
    key: Some("order-4711"),
    amount: 1000,
    retries: 3,
};

/// The SDK makes the key.
const PLAIN: Order = Order { key: None, ..ORDER };

/// The statuses that the SDK was answered with, one an attempt.
fn statuses(heard: &Heard) -> Vec<u16> {
    assert_eq!(heard.requests.len(), heard.answers.len(), "{heard:?}");
    heard.answers.iter().map(wire::Head::status).collect()
}

/// The one key that all attempts were made under.
fn only_key(heard: &Heard) -> String {
    let mut keys: Vec<_> = heard
        .requests
        .iter()
        .map(|request| request.header("idempotency-key").unwrap().to_owned())
        .collect();
    keys.dedup();
    assert_eq!(keys.len(), 1, "{heard:?}");
    keys.remove(0)
}

/// What the application is to catch, in the words of its SDK.
fn assert_raised(sdk: Sdk, seen: &Seen, python: &str, node: &str) {
    let expected = match sdk {
        Sdk::Python => python,
        Sdk::Node => node,
    };
    assert_eq!(seen.class(), expected, "{seen:?}");
}

async fn a_repeated_call_is_replayed(sdk: Sdk) {
    let Some(world) = World::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = world.application().await;
    let first = application.create(ORDER).await;
    assert_eq!((first.id(), first.status()), ("pi_1", 200));
    assert_eq!(first.header(REPLAYED), None);

    let second = application.create(ORDER).await;
    assert_eq!((second.id(), second.status()), ("pi_1", 200));
    assert_eq!(second.header(REPLAYED), Some("true"));
    assert_eq!(second.header("idempotency-key"), ORDER.key);

    assert_eq!(statuses(&application.heard()), [200, 200]);
    assert_eq!(world.upstream.executions(), 1);
}

async fn the_api_key_is_the_caller(sdk: Sdk) {
    let Some(world) = World::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = world.application().await;
    let other = Order {
        api_key: "sk_test_two",
        ..ORDER
    };
    assert_eq!(application.create(ORDER).await.id(), "pi_1");
    assert_eq!(application.create(other).await.id(), "pi_2");
    assert_eq!(application.create(other).await.id(), "pi_2");
    assert_eq!(world.upstream.executions(), 2);
}

async fn another_account_is_never_given_the_answer(sdk: Sdk) {
    let Some(world) = World::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = world.application().await;
    let for_account = |account| Order {
        account: Some(account),
        ..ORDER
    };
    assert_eq!(application.create(for_account("acct_1")).await.id(), "pi_1");
    let other = application.create(for_account("acct_2")).await;
    assert_raised(sdk, &other, "IdempotencyError", "StripeIdempotencyError");
    assert_eq!(application.create(for_account("acct_1")).await.id(), "pi_1");
    assert_eq!(statuses(&application.heard()), [200, 400, 200]);
    assert_eq!(world.upstream.executions(), 1);
}

async fn misuse_is_an_idempotency_error_and_is_not_retried(sdk: Sdk) {
    let Some(world) = World::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = world.application().await;
    application.create(ORDER).await;
    let misuse = Order {
        amount: 2000,
        ..ORDER
    };
    let refused = application.create(misuse).await;
    assert_raised(sdk, &refused, "IdempotencyError", "StripeIdempotencyError");
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.code(), Some("idempotency_key_reused"));

    assert_eq!(statuses(&application.heard()), [200, 400]);
    assert_eq!(world.upstream.executions(), 1);
}

async fn a_call_in_flight_is_retried_until_it_is_replayed(sdk: Sdk) {
    let Some(world) = World::start(sdk, Behaviour::Hold).await else {
        return;
    };
    let mut first = world.application().await;
    first.begin(ORDER).await;
    world.upstream.executing().await;

    let mut second = world.application().await;
    second.begin(ORDER).await;
    second.answered().await;
    world.upstream.release();
    assert_eq!(first.end().await.header(REPLAYED), None);
    let replayed = second.end().await;
    assert_eq!((replayed.id(), replayed.status()), ("pi_1", 200));
    assert_eq!(replayed.header(REPLAYED), Some("true"));

    let heard = second.heard();
    let (last, refusals) = heard.answers.split_last().unwrap();
    assert_eq!(last.status(), 200);
    assert!(!refusals.is_empty());
    for refusal in refusals {
        assert_eq!(refusal.status(), 409);
        assert_eq!(refusal.header(SHOULD_RETRY), Some("true"));
    }
    assert_eq!(only_key(&heard), "order-4711");
    assert_eq!(world.upstream.executions(), 1);
}

async fn a_call_in_flight_is_an_api_error_without_retries(sdk: Sdk) {
    let Some(world) = World::start(sdk, Behaviour::Hold).await else {
        return;
    };
    let mut first = world.application().await;
    first.begin(ORDER).await;
    world.upstream.executing().await;

    let mut second = world.application().await;
    let once = Order {
        retries: 0,
        ..ORDER
    };
    let refused = second.create(once).await;
    assert_raised(sdk, &refused, "APIError", "StripeAPIError");
    assert_eq!(refused.status(), 409);
    assert_eq!(refused.code(), Some("idempotency_key_in_use"));
    assert_eq!(refused.header(SHOULD_RETRY), Some("true"));
    assert_eq!(statuses(&second.heard()), [409]);

    world.upstream.release();
    assert_eq!(first.end().await.id(), "pi_1");
    assert_eq!(world.upstream.executions(), 1);
}

async fn a_replayed_failure_ends_the_retries(sdk: Sdk) {
    let failure = Behaviour::Fail(StatusCode::INTERNAL_SERVER_ERROR);
    let Some(world) = World::start(sdk, failure).await else {
        return;
    };
    let mut application = world.application().await;
    let failed = application.create(PLAIN).await;
    assert_raised(sdk, &failed, "APIError", "StripeAPIError");
    assert_eq!(failed.status(), 500);
    assert_eq!(failed.header(REPLAYED), Some("true"));
    assert_eq!(failed.header(SHOULD_RETRY), Some("false"));

    let heard = application.heard();
    assert_eq!(statuses(&heard), [500, 500]);
    assert_eq!(heard.answers[0].header(REPLAYED), None);
    only_key(&heard);
    assert_eq!(world.upstream.executions(), 1);
}

async fn an_unknown_outcome_ends_the_retries(sdk: Sdk) {
    let failure = Behaviour::Fail(StatusCode::SERVICE_UNAVAILABLE);
    let Some(world) = World::start(sdk, failure).await else {
        return;
    };
    let mut application = world.application().await;
    let failed = application.create(PLAIN).await;
    assert_raised(sdk, &failed, "APIError", "StripeAPIError");
    assert_eq!(failed.status(), 409);
    assert_eq!(failed.code(), Some("idempotency_outcome_unknown"));
    assert_eq!(failed.header(SHOULD_RETRY), Some("false"));

    let heard = application.heard();
    assert_eq!(statuses(&heard), [503, 409]);
    only_key(&heard);
    assert_eq!(world.upstream.executions(), 1);
}

async fn a_plain_call_is_guarded_by_the_key_of_the_sdk(sdk: Sdk) {
    let Some(world) = World::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = world.application().await;
    let first = application.create(PLAIN).await;
    let second = application.create(PLAIN).await;
    assert_eq!((first.id(), second.id()), ("pi_1", "pi_2"));
    // The gateway promises an end of the replay window only for what it guards.
    for seen in [&first, &second] {
        assert!(seen.header("idempotency-key-expires").is_some(), "{seen:?}");
    }
    let heard = application.heard();
    assert_eq!(statuses(&heard), [200, 200]);
    let [one, other] = &heard.requests[..] else {
        panic!("{heard:?}");
    };
    assert!(one.first_line().starts_with("POST /v1/payment_intents "));
    let key = one.header("idempotency-key");
    assert!(key.is_some() && key != other.header("idempotency-key"));
}

/// Every scenario with this SDK, each as a test of its own.
macro_rules! scenarios {
    ($sdk:expr; $($scenario:ident)*) => {
        $(
            #[tokio::test]
            async fn $scenario() {
                let scenario = super::$scenario($sdk);
                tokio::time::timeout(super::PATIENCE, scenario).await.unwrap();
            }
        )*
    };
}

macro_rules! for_each_sdk {
    ($($scenario:ident)*) => {
        mod python {
            scenarios!(super::Sdk::Python; $($scenario)*);
        }
        mod node {
            scenarios!(super::Sdk::Node; $($scenario)*);
        }
    };
}

for_each_sdk! {
    a_repeated_call_is_replayed
    the_api_key_is_the_caller
    another_account_is_never_given_the_answer
    misuse_is_an_idempotency_error_and_is_not_retried
    a_call_in_flight_is_retried_until_it_is_replayed
    a_call_in_flight_is_an_api_error_without_retries
    a_replayed_failure_ends_the_retries
    an_unknown_outcome_ends_the_retries
    a_plain_call_is_guarded_by_the_key_of_the_sdk
}
