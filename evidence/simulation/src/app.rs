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
use crate::world::{World, lock, number};

/// The header by which a client of the simulation knows the application's own answers.
pub(crate) const MARK: &str = "x-sim";

/// The unit of work is over, and every retry is told the same.
pub(crate) const FINAL: &str = "final";

/// The largest answer that is stored.
pub(crate) const MAX_RESPONSE: usize = 600;

/// How an execution goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
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
    /// It stops waiting for the provider, whose effect comes when it comes.
    GivesUpOnProvider,
}

/// Every way in which it does not go well, and the fault's name.
const WRONG: [(Way, &str); 16] = [
    (Way::Declined, "app_declined"),
    (Way::TooLargeToStore, "app_answer_too_large"),
    (Way::Late, "app_late"),
    (Way::SaysNotExecuted, "app_not_executed"),
    (Way::SaysForget, "app_forget"),
    (Way::Unreachable, "app_unreachable"),
    (Way::SaysUnknownAfter, "app_unknown_after_effect"),
    (Way::TimesOutBefore, "app_504_without_effect"),
    (Way::TimesOutAfter, "app_504_after_effect"),
    (Way::Fails500After, "app_500_after_effect"),
    (Way::ResetBefore, "app_reset_before_effect"),
    (Way::ResetAfter, "app_reset_after_effect"),
    (Way::BreaksOff, "app_answer_broke_off"),
    (Way::PanicsBefore, "app_panicked_before_effect"),
    (Way::PanicsAfter, "app_panicked_after_effect"),
    (Way::GivesUpOnProvider, "app_gave_up_on_provider"),
];

/// The connection to the application broke.
#[derive(Debug)]
pub(crate) struct Reset;

/// A body that may break off.
#[derive(Debug, Default)]
pub(crate) struct Flow(VecDeque<Result<Bytes, Reset>>);

/// The answer that a ledger's entry means.
pub(crate) struct Final {
    pub(crate) status: u16,
    pub(crate) etag: String,
    pub(crate) body: Bytes,
}

/// The words of an answer, the last of which may be empty. One that has fewer broke off.
pub(crate) const WORDS: usize = 7;

/// Says it in words that a client can hold against what it sent.
pub(crate) fn final_answer(entry: &Entry, by: &str, padding: usize) -> Final {
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
    Final {
        status: if *charged { 201 } else { 402 },
        etag: format!("\"{number}\""),
        body: format!("{id} {number} {tenant} {command} {amount} {by} {padding}").into(),
    }
}

/// One execution.
pub(crate) async fn handle(
    world: Arc<World>,
    process: Arc<Process>,
    request: Request<RequestBody<Full<Bytes>>>,
) -> Result<Response<Flow>, Reset> {
    let (head, body) = request.into_parts();
    let Some(operation) = head.extensions.get::<Operation>().cloned() else {
        world.violate("executed_unguarded", format!("{}", head.uri));
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
    let scope = match world.key_scope() {
        KeyScope::Operation => command,
        KeyScope::Tenant => "*",
    };
    let broken = lock(&world.witness).started(fence, world.plan.store_patience);
    world.violate_all(broken);
    let way = way(&world);
    if way == Way::TooLargeToStore {
        lock(&world.witness).answers_too_much(fence.id);
    }
    world.tell(format_args!(
        "{}: executes op{} attempt {} of {tenant}/{scope}/{key}: {way:?}",
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
        decline: way == Way::Declined,
    };
    let answer = if command == BOOK {
        phases::go(&world, &process, way, operation, call).await
    } else {
        go(&world, &process, way, call).await
    };
    process.step().await;
    answer
}

fn way(world: &World) -> Way {
    if world.is_healed() {
        return Way::Well;
    }
    let rate = world.plan.app_faults;
    let wrong = world.draw(|rng| {
        let at = rng.index(WRONG.len());
        rng.in_thousand(rate).then(|| WRONG.get(at)).flatten()
    });
    wrong.map_or(Way::Well, |(way, name)| {
        world.fault(name);
        *way
    })
}

async fn go(
    world: &Arc<World>,
    process: &Arc<Process>,
    way: Way,
    call: Call,
) -> Result<Response<Flow>, Reset> {
    world.mishap(process);
    process.step().await;
    world.dawdle(0, 40).await;
    process.step().await;
    match way {
        Way::SaysNotExecuted => return Ok(says(409, "not-executed")),
        Way::SaysForget => return Ok(passing(429)),
        Way::Unreachable => return Ok(Outcome::unreachable().into_response()),
        Way::TimesOutBefore => return Ok(passing(504)),
        Way::ResetBefore => return Err(Reset),
        Way::PanicsBefore => std::panic::resume_unwind(Box::new("an application that panics")),
        Way::Well
        | Way::Declined
        | Way::TooLargeToStore
        | Way::Late
        | Way::SaysUnknownAfter
        | Way::TimesOutAfter
        | Way::Fails500After
        | Way::ResetAfter
        | Way::BreaksOff
        | Way::PanicsAfter
        | Way::GivesUpOnProvider => {}
    }
    let called = ask_provider(world, way, call);
    if way == Way::GivesUpOnProvider {
        world.dawdle(10, 500).await;
        return Ok(passing(504));
    }
    // The runtime ends tasks only with the world.
    let charge = called.await.map_err(|_| Reset)?;
    if way == Way::Late {
        world.dawdle(1000, 15_000).await;
    }
    world.dawdle(0, 40).await;
    world.mishap(process);
    process.step().await;
    let entry = match charge {
        Charge::Happened(entry) => entry,
        // Called off: it is proven that this attempt did nothing.
        Charge::Voided => return Ok(says(409, "not-executed")),
    };
    answer(process, way, &entry)
}

/// What the application makes of what happened.
fn answer(process: &Process, way: Way, entry: &Entry) -> Result<Response<Flow>, Reset> {
    let by = format!("app-{}", process.name);
    let answer = final_answer(entry, &by, 0);
    match way {
        Way::SaysUnknownAfter => Ok(says(200, "unknown")),
        Way::TimesOutAfter => Ok(passing(504)),
        Way::ResetAfter => Err(Reset),
        Way::PanicsAfter => std::panic::resume_unwind(Box::new("an application that panics")),
        Way::BreaksOff => {
            let half = answer.body.slice(..answer.body.len() / 2);
            let flow = Flow([Ok(half), Err(Reset)].into());
            Ok(marked(answer.status, &answer.etag, flow))
        }
        Way::Fails500After => Ok(marked(500, &answer.etag, Flow::from(answer.body))),
        Way::TooLargeToStore => {
            let large = final_answer(entry, &by, MAX_RESPONSE);
            Ok(marked(large.status, &large.etag, Flow::from(large.body)))
        }
        Way::Well
        | Way::Declined
        | Way::Late
        | Way::SaysNotExecuted
        | Way::SaysForget
        | Way::Unreachable
        | Way::TimesOutBefore
        | Way::ResetBefore
        | Way::PanicsBefore
        | Way::GivesUpOnProvider => {
            Ok(marked(answer.status, &answer.etag, Flow::from(answer.body)))
        }
    }
}

/// A call that is on its way cannot be taken back, whatever becomes of the caller.
fn ask_provider(world: &Arc<World>, way: Way, call: Call) -> tokio::task::JoinHandle<Charge> {
    let travels = world.draw(|rng| {
        let far = rng.in_thousand(250);
        let slowest = if way == Way::GivesUpOnProvider {
            20_000
        } else if far {
            5000
        } else {
            150
        };
        rng.millis(0, slowest)
    });
    let world = Arc::clone(world);
    tokio::spawn(async move {
        tokio::time::sleep(travels).await;
        world.charge(call)
    })
}

fn amount(body: &Bytes) -> u64 {
    let body: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    body.and_then(|body| body.get("amount")?.as_u64())
        .unwrap_or(0)
}

fn marked(status: u16, etag: &str, flow: Flow) -> Response<Flow> {
    let mut response = passing(status);
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

fn says(status: u16, outcome: &'static str) -> Response<Flow> {
    let mut response = passing(status);
    let outcome = http::HeaderValue::from_static(outcome);
    response
        .headers_mut()
        .insert(semel_http::outcome::HEADER, outcome);
    response
}

/// An answer that says nothing of the operation.
fn passing(status: u16) -> Response<Flow> {
    let mut response = Response::new(Flow::default());
    *response.status_mut() = http::StatusCode::from_u16(status).unwrap_or_default();
    response
}

impl From<Bytes> for Flow {
    fn from(body: Bytes) -> Self {
        Self([Ok(body)].into())
    }
}

impl Body for Flow {
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
