//! The application behind the layer: it calls the provider, and misbehaves as applications do.

mod phases;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::{BodyExt as _, Full};
use semel_core::KeyScope;
use semel_http::{Operation, Outcome, RequestBody};

use crate::plan::{BOOK, command_of};
use crate::process::Process;
use crate::provider::{Call, Charge, Entry};
use crate::scenario::{Scenario, lock, number};

/// The header by which a client of the simulation knows the application's own answers.
pub(crate) const MARK: &str = "x-sim";

/// Marks a final answer, which every retry gets.
pub(crate) const FINAL: &str = "final";

/// The largest answer that is stored.
pub(crate) const MAX_RESPONSE: usize = 600;

/// How an execution behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Well,
    Declined,
    TooLargeToStore,
    /// The answer takes longer than the lease, or than an execution may take.
    Late,
    SaysNotExecuted,
    SaysForget,
    Unreachable,
    SaysUnknownAfter,
    TimesOutBefore,
    TimesOutAfter,
    Fails500After,
    ResetBefore,
    ResetAfter,
    BreaksOff,
    PanicsBefore,
    PanicsAfter,
    /// Stops waiting for the provider, whose effect comes later.
    GivesUpOnProvider,
}

/// Every fault of an execution, and its name.
const FAULTS: [(Behaviour, &str); 16] = [
    (Behaviour::Declined, "app_declined"),
    (Behaviour::TooLargeToStore, "app_answer_too_large"),
    (Behaviour::Late, "app_late"),
    (Behaviour::SaysNotExecuted, "app_not_executed"),
    (Behaviour::SaysForget, "app_forget"),
    (Behaviour::Unreachable, "app_unreachable"),
    (Behaviour::SaysUnknownAfter, "app_unknown_after_effect"),
    (Behaviour::TimesOutBefore, "app_504_without_effect"),
    (Behaviour::TimesOutAfter, "app_504_after_effect"),
    (Behaviour::Fails500After, "app_500_after_effect"),
    (Behaviour::ResetBefore, "app_reset_before_effect"),
    (Behaviour::ResetAfter, "app_reset_after_effect"),
    (Behaviour::BreaksOff, "app_answer_broke_off"),
    (Behaviour::PanicsBefore, "app_panicked_before_effect"),
    (Behaviour::PanicsAfter, "app_panicked_after_effect"),
    (Behaviour::GivesUpOnProvider, "app_gave_up_on_provider"),
];

/// The connection to the application broke.
#[derive(Debug)]
pub(crate) struct Reset;

/// A body that may break off.
#[derive(Debug, Default)]
pub(crate) struct BreakingBody(VecDeque<Result<Bytes, Reset>>);

/// The final answer for an entry of the ledger.
pub(crate) struct FinalAnswer {
    pub(crate) status: u16,
    pub(crate) etag: String,
    pub(crate) body: Bytes,
}

/// The number of parts of an answer, the last of which may be empty. An answer with fewer broke off.
pub(crate) const ANSWER_PARTS: usize = 7;

/// An answer that a client can compare with its request.
pub(crate) fn final_answer(entry: &Entry, by: &str, padding: usize) -> FinalAnswer {
    let Entry {
        number,
        tenant,
        command,
        amount,
        id,
        charged,
        ..
    } = entry;
    let padding = "x".repeat(padding);
    FinalAnswer {
        status: if *charged { 201 } else { 402 },
        etag: format!("\"{number}\""),
        body: format!("{id} {number} {tenant} {command} {amount} {by} {padding}").into(),
    }
}

/// Executes one request.
pub(crate) async fn handle(
    scenario: Arc<Scenario>,
    process: Arc<Process>,
    request: Request<RequestBody<Full<Bytes>>>,
) -> Result<Response<BreakingBody>, Reset> {
    let (head, body) = request.into_parts();
    let Some(operation) = head.extensions.get::<Operation>().cloned() else {
        scenario.violate("executed_unguarded", format!("{}", head.uri));
        return Err(Reset);
    };
    let fence = operation.fence();
    let text = |name: &str| {
        let value = head.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().trim_matches('"').to_owned()
    };
    let body = body.collect().await.map_err(|_| Reset)?.to_bytes();
    let command = command_of(head.uri.path());
    let (tenant, key) = (text("x-account"), text("idempotency-key"));
    let scope = match scenario.key_scope() {
        KeyScope::Operation => command,
        KeyScope::Tenant => "*",
    };
    let broken = lock(&scenario.witness).started(fence, scenario.plan.store_patience);
    scenario.violate_all(broken);
    let behaviour = draw_behaviour(&scenario);
    if behaviour == Behaviour::TooLargeToStore {
        lock(&scenario.witness).observe_oversized_response(fence.id);
    }
    scenario.record_event(format_args!(
        "{}: executes op{} attempt {} of {tenant}/{scope}/{key}: {behaviour:?}",
        process.name,
        number(fence.id),
        fence.attempt
    ));
    let call = Call {
        fence,
        slot: format!("{tenant}/{scope}/{key}"),
        tenant,
        command: command.to_owned(),
        amount: amount(&body),
        decline: behaviour == Behaviour::Declined,
    };
    let answer = if command == BOOK {
        phases::execute(&scenario, &process, behaviour, operation, call).await
    } else {
        execute(&scenario, &process, behaviour, call).await
    };
    process.step().await;
    answer
}

fn draw_behaviour(scenario: &Scenario) -> Behaviour {
    if scenario.is_healed() {
        return Behaviour::Well;
    }
    let rate = scenario.plan.app_faults;
    let wrong = scenario.draw(|rng| {
        let at = rng.index(FAULTS.len());
        rng.in_thousand(rate).then(|| FAULTS.get(at)).flatten()
    });
    wrong.map_or(Behaviour::Well, |(behaviour, name)| {
        scenario.fault(name);
        *behaviour
    })
}

async fn execute(
    scenario: &Arc<Scenario>,
    process: &Arc<Process>,
    behaviour: Behaviour,
    call: Call,
) -> Result<Response<BreakingBody>, Reset> {
    scenario.inject_mishap(process);
    process.step().await;
    scenario.sleep_random(0, 40).await;
    process.step().await;
    match behaviour {
        Behaviour::SaysNotExecuted => return Ok(response_with_outcome(409, "not-executed")),
        Behaviour::SaysForget => return Ok(plain_response(429)),
        Behaviour::Unreachable => return Ok(Outcome::unreachable().into_response()),
        Behaviour::TimesOutBefore => return Ok(plain_response(504)),
        Behaviour::ResetBefore => return Err(Reset),
        Behaviour::PanicsBefore => {
            std::panic::resume_unwind(Box::new("an application that panics"))
        }
        Behaviour::Well
        | Behaviour::Declined
        | Behaviour::TooLargeToStore
        | Behaviour::Late
        | Behaviour::SaysUnknownAfter
        | Behaviour::TimesOutAfter
        | Behaviour::Fails500After
        | Behaviour::ResetAfter
        | Behaviour::BreaksOff
        | Behaviour::PanicsAfter
        | Behaviour::GivesUpOnProvider => {}
    }
    let called = call_provider(scenario, behaviour, call);
    if behaviour == Behaviour::GivesUpOnProvider {
        scenario.sleep_random(10, 500).await;
        return Ok(plain_response(504));
    }
    // Tasks end only with the runtime.
    let charge = called.await.map_err(|_| Reset)?;
    if behaviour == Behaviour::Late {
        scenario.sleep_random(1000, 15_000).await;
    }
    scenario.sleep_random(0, 40).await;
    scenario.inject_mishap(process);
    process.step().await;
    let entry = match charge {
        Charge::Happened(entry) => entry,
        // Voided: this attempt provably had no effect.
        Charge::Voided => return Ok(response_with_outcome(409, "not-executed")),
    };
    answer(process, behaviour, &entry)
}

/// The response to the client.
fn answer(
    process: &Process,
    behaviour: Behaviour,
    entry: &Entry,
) -> Result<Response<BreakingBody>, Reset> {
    let by = format!("app-{}", process.name);
    let answer = final_answer(entry, &by, 0);
    match behaviour {
        Behaviour::SaysUnknownAfter => Ok(response_with_outcome(200, "unknown")),
        Behaviour::TimesOutAfter => Ok(plain_response(504)),
        Behaviour::ResetAfter => Err(Reset),
        Behaviour::PanicsAfter => std::panic::resume_unwind(Box::new("an application that panics")),
        Behaviour::BreaksOff => {
            let half = answer.body.slice(..answer.body.len() / 2);
            let flow = BreakingBody([Ok(half), Err(Reset)].into());
            Ok(final_response(answer.status, &answer.etag, flow))
        }
        Behaviour::Fails500After => Ok(final_response(
            500,
            &answer.etag,
            BreakingBody::from(answer.body),
        )),
        Behaviour::TooLargeToStore => {
            let large = final_answer(entry, &by, MAX_RESPONSE);
            Ok(final_response(
                large.status,
                &large.etag,
                BreakingBody::from(large.body),
            ))
        }
        Behaviour::Well
        | Behaviour::Declined
        | Behaviour::Late
        | Behaviour::SaysNotExecuted
        | Behaviour::SaysForget
        | Behaviour::Unreachable
        | Behaviour::TimesOutBefore
        | Behaviour::ResetBefore
        | Behaviour::PanicsBefore
        | Behaviour::GivesUpOnProvider => Ok(final_response(
            answer.status,
            &answer.etag,
            BreakingBody::from(answer.body),
        )),
    }
}

/// Calls the provider in a task of its own: a call that was sent reaches the provider even if the
/// caller ends.
fn call_provider(
    scenario: &Arc<Scenario>,
    behaviour: Behaviour,
    call: Call,
) -> tokio::task::JoinHandle<Charge> {
    let travels = scenario.draw(|rng| {
        let far = rng.in_thousand(250);
        let slowest = if behaviour == Behaviour::GivesUpOnProvider {
            20_000
        } else if far {
            5000
        } else {
            150
        };
        rng.millis(0, slowest)
    });
    let scenario = Arc::clone(scenario);
    tokio::spawn(async move {
        tokio::time::sleep(travels).await;
        scenario.charge(call)
    })
}

fn amount(body: &Bytes) -> u64 {
    let body: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    body.and_then(|body| body.get("amount")?.as_u64())
        .unwrap_or(0)
}

fn final_response(status: u16, etag: &str, flow: BreakingBody) -> Response<BreakingBody> {
    let mut response = plain_response(status);
    *response.body_mut() = flow;
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-type", "text/plain"),
        ("etag", etag),
        (MARK, FINAL),
    ] {
        if let Ok(value) = value.parse() {
            headers.insert(name, value);
        }
    }
    response
}

fn response_with_outcome(status: u16, outcome: &'static str) -> Response<BreakingBody> {
    let mut response = plain_response(status);
    let outcome = http::HeaderValue::from_static(outcome);
    response
        .headers_mut()
        .insert(semel_http::outcome::HEADER, outcome);
    response
}

/// A response without an outcome header or a final answer.
fn plain_response(status: u16) -> Response<BreakingBody> {
    let mut response = Response::new(BreakingBody::default());
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response
}

impl From<Bytes> for BreakingBody {
    fn from(body: Bytes) -> Self {
        Self([Ok(body)].into())
    }
}

impl Body for BreakingBody {
    type Data = Bytes;
    type Error = Reset;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Reset>>> {
        Poll::Ready(self.0.pop_front().map(|data| data.map(Frame::data)))
    }
}

impl std::fmt::Display for Reset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection was reset")
    }
}

impl std::error::Error for Reset {}
