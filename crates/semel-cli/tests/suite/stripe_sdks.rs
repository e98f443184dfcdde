//! The `stripe` dialect with Stripe's own SDKs: their error classes, and their retries.
//!
//! Real SDKs, the real gateway, and a stub behind it. A small program beside this file calls each
//! SDK, and a proxy records the requests and answers.

mod recording_proxy;
mod test_bed;
mod upstream;

use std::time::Duration;

use axum::http::StatusCode;

use recording_proxy::Recording;
use test_bed::{Order, Sdk, SdkResult, TestBed};
use upstream::Behaviour;

/// A test that hangs fails. Each scenario takes a second or two, mostly pauses of the SDKs.
const TEST_TIMEOUT: Duration = Duration::from_mins(2);

const REPLAYED: &str = "idempotent-replayed";
const SHOULD_RETRY: &str = "stripe-should-retry";

const ORDER: Order = Order {
    api_key: "sk_test_one",
    account: None,
    key: Some("order-4711"),
    amount: 1000,
    retries: 3,
};

/// The SDK generates the key.
const PLAIN: Order = Order { key: None, ..ORDER };

/// The statuses of the answers to the SDK, one for each attempt.
fn statuses(recording: &Recording) -> Vec<u16> {
    assert_eq!(
        recording.requests.len(),
        recording.answers.len(),
        "{recording:?}"
    );
    recording
        .answers
        .iter()
        .map(recording_proxy::Head::status)
        .collect()
}

/// The key, which must be the same for all attempts.
fn only_key(recording: &Recording) -> String {
    let mut keys: Vec<_> = recording
        .requests
        .iter()
        .map(|request| request.header("idempotency-key").unwrap().to_owned())
        .collect();
    keys.dedup();
    assert_eq!(keys.len(), 1, "{recording:?}");
    keys.remove(0)
}

/// Asserts the error class that the application catches.
fn assert_raised(sdk: Sdk, result: &SdkResult, python: &str, node: &str) {
    let expected = match sdk {
        Sdk::Python => python,
        Sdk::Node => node,
    };
    assert_eq!(result.class(), expected, "{result:?}");
}

async fn repeated_call_is_replayed(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = bed.start_application().await;
    let first = application.create(ORDER).await;
    assert_eq!((first.id(), first.status()), ("pi_1", 200));
    assert_eq!(first.header(REPLAYED), None);

    let second = application.create(ORDER).await;
    assert_eq!((second.id(), second.status()), ("pi_1", 200));
    assert_eq!(second.header(REPLAYED), Some("true"));
    assert_eq!(second.header("idempotency-key"), ORDER.key);

    assert_eq!(statuses(&application.recording()), [200, 200]);
    assert_eq!(bed.upstream.executions(), 1);
}

async fn a_corrected_request_executes_once_under_the_same_key(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Validate).await else {
        return;
    };
    let mut application = bed.start_application().await;
    let invalid = Order {
        amount: 10,
        ..ORDER
    };
    let refused = application.create(invalid).await;
    let (python, node) = ("InvalidRequestError", "StripeInvalidRequestError");
    assert_raised(sdk, &refused, python, node);
    assert_eq!(refused.code(), Some("amount_too_small"));
    for replayed in [None, Some("true")] {
        let created = application.create(ORDER).await;
        assert_eq!((created.id(), created.status()), ("pi_1", 200));
        assert_eq!(created.header(REPLAYED), replayed);
    }
    assert_eq!(statuses(&application.recording()), [400, 200, 200]);
    assert_eq!(bed.upstream.executions(), 1);
}

async fn same_key_with_another_api_key_executes(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = bed.start_application().await;
    let other = Order {
        api_key: "sk_test_two",
        ..ORDER
    };
    assert_eq!(application.create(ORDER).await.id(), "pi_1");
    assert_eq!(application.create(other).await.id(), "pi_2");
    assert_eq!(application.create(other).await.id(), "pi_2");
    assert_eq!(bed.upstream.executions(), 2);
}

async fn same_key_for_another_account_is_an_idempotency_error(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = bed.start_application().await;
    let for_account = |account| Order {
        account: Some(account),
        ..ORDER
    };
    assert_eq!(application.create(for_account("acct_1")).await.id(), "pi_1");
    let other = application.create(for_account("acct_2")).await;
    assert_raised(sdk, &other, "IdempotencyError", "StripeIdempotencyError");
    assert_eq!(application.create(for_account("acct_1")).await.id(), "pi_1");
    assert_eq!(statuses(&application.recording()), [200, 400, 200]);
    assert_eq!(bed.upstream.executions(), 1);
}

async fn misuse_is_an_idempotency_error_and_is_not_retried(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = bed.start_application().await;
    application.create(ORDER).await;
    let misuse = Order {
        amount: 2000,
        ..ORDER
    };
    let refused = application.create(misuse).await;
    assert_raised(sdk, &refused, "IdempotencyError", "StripeIdempotencyError");
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.code(), Some("idempotency_key_reused"));

    assert_eq!(statuses(&application.recording()), [200, 400]);
    assert_eq!(bed.upstream.executions(), 1);
}

async fn a_call_in_flight_is_retried_until_it_is_replayed(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Hold).await else {
        return;
    };
    let mut first = bed.start_application().await;
    first.begin(ORDER).await;
    bed.upstream.wait_for_execution().await;

    let mut second = bed.start_application().await;
    second.begin(ORDER).await;
    second.wait_for_answer().await;
    bed.upstream.release();
    assert_eq!(first.end().await.header(REPLAYED), None);
    let replayed = second.end().await;
    assert_eq!((replayed.id(), replayed.status()), ("pi_1", 200));
    assert_eq!(replayed.header(REPLAYED), Some("true"));

    let recording = second.recording();
    let (last, refusals) = recording.answers.split_last().unwrap();
    assert_eq!(last.status(), 200);
    assert!(!refusals.is_empty());
    for refusal in refusals {
        assert_eq!(refusal.status(), 409);
        assert_eq!(refusal.header(SHOULD_RETRY), Some("true"));
    }
    assert_eq!(only_key(&recording), "order-4711");
    assert_eq!(bed.upstream.executions(), 1);
}

async fn a_call_in_flight_is_an_api_error_without_retries(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Hold).await else {
        return;
    };
    let mut first = bed.start_application().await;
    first.begin(ORDER).await;
    bed.upstream.wait_for_execution().await;

    let mut second = bed.start_application().await;
    let once = Order {
        retries: 0,
        ..ORDER
    };
    let refused = second.create(once).await;
    assert_raised(sdk, &refused, "APIError", "StripeAPIError");
    assert_eq!(refused.status(), 409);
    assert_eq!(refused.code(), Some("idempotency_key_in_use"));
    assert_eq!(refused.header(SHOULD_RETRY), Some("true"));
    assert_eq!(statuses(&second.recording()), [409]);

    bed.upstream.release();
    assert_eq!(first.end().await.id(), "pi_1");
    assert_eq!(bed.upstream.executions(), 1);
}

async fn a_replayed_failure_ends_the_retries(sdk: Sdk) {
    let failure = Behaviour::Fail(StatusCode::INTERNAL_SERVER_ERROR);
    let Some(bed) = TestBed::start(sdk, failure).await else {
        return;
    };
    let mut application = bed.start_application().await;
    let failed = application.create(PLAIN).await;
    assert_raised(sdk, &failed, "APIError", "StripeAPIError");
    assert_eq!(failed.status(), 500);
    assert_eq!(failed.header(REPLAYED), Some("true"));
    assert_eq!(failed.header(SHOULD_RETRY), Some("false"));

    let recording = application.recording();
    assert_eq!(statuses(&recording), [500, 500]);
    assert_eq!(recording.answers[0].header(REPLAYED), None);
    only_key(&recording);
    assert_eq!(bed.upstream.executions(), 1);
}

async fn an_unknown_outcome_ends_the_retries(sdk: Sdk) {
    let failure = Behaviour::Fail(StatusCode::SERVICE_UNAVAILABLE);
    let Some(bed) = TestBed::start(sdk, failure).await else {
        return;
    };
    let mut application = bed.start_application().await;
    let failed = application.create(PLAIN).await;
    assert_raised(sdk, &failed, "APIError", "StripeAPIError");
    assert_eq!(failed.status(), 409);
    assert_eq!(failed.code(), Some("idempotency_outcome_unknown"));
    assert_eq!(failed.header(SHOULD_RETRY), Some("false"));

    let recording = application.recording();
    assert_eq!(statuses(&recording), [503, 409]);
    only_key(&recording);
    assert_eq!(bed.upstream.executions(), 1);
}

async fn call_without_a_key_is_guarded_by_the_key_of_the_sdk(sdk: Sdk) {
    let Some(bed) = TestBed::start(sdk, Behaviour::Create).await else {
        return;
    };
    let mut application = bed.start_application().await;
    let first = application.create(PLAIN).await;
    let second = application.create(PLAIN).await;
    assert_eq!((first.id(), second.id()), ("pi_1", "pi_2"));
    // The gateway sends the end of the replay window only for guarded requests.
    for result in [&first, &second] {
        assert!(
            result.header("idempotency-key-expires").is_some(),
            "{result:?}"
        );
    }
    let recording = application.recording();
    assert_eq!(statuses(&recording), [200, 200]);
    let [one, other] = &recording.requests[..] else {
        panic!("{recording:?}");
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
                tokio::time::timeout(super::TEST_TIMEOUT, scenario).await.unwrap();
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
    repeated_call_is_replayed
    a_corrected_request_executes_once_under_the_same_key
    same_key_with_another_api_key_executes
    same_key_for_another_account_is_an_idempotency_error
    misuse_is_an_idempotency_error_and_is_not_retried
    a_call_in_flight_is_retried_until_it_is_replayed
    a_call_in_flight_is_an_api_error_without_retries
    a_replayed_failure_ends_the_retries
    an_unknown_outcome_ends_the_retries
    call_without_a_key_is_guarded_by_the_key_of_the_sdk
}
