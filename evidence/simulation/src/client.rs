//! Clients: they retry, give up, misuse keys, and compare what they are told with what they sent
//! and with the provider's ledger.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use semel_core::{Clock as _, OperationId};
use tokio::time::sleep;
use tower::ServiceExt as _;

use crate::app::{self, FINAL, MARK};
use crate::jostle::jostled;
use crate::plan::{Intent, path_of};
use crate::town::Town;
use crate::world::{lock, number};

/// What one request came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The application's own word, that every retry is given: entry and operation.
    Final(usize, OperationId),
    /// It is over, and its answer no longer there.
    Over,
    /// The key is somebody else's.
    Misuse,
    /// Nothing yet.
    Later,
}

/// The most requests that one client makes for one thing.
const TRIES: u64 = 8;

/// One client's day: the storms it takes part in, each until it is told the end or has had enough.
pub(crate) async fn live(town: Arc<Town>, name: usize) {
    let world = &town.world;
    for (at, intent) in &world.plan.storms {
        sleep(at.saturating_sub(world.elapsed())).await;
        world.dawdle(0, 200).await;
        if world.draw(|rng| rng.in_thousand(300)) {
            continue;
        }
        let tries = world.draw(|rng| rng.between(1, TRIES));
        for _ in 0..tries {
            if world.draw(|rng| rng.in_thousand(world.plan.misuse)) {
                world.fault("client_misused_key");
                let other = Intent {
                    amount: intent.amount + 1,
                    ..intent.clone()
                };
                send(&town, name, &other, false).await;
                continue;
            }
            let again = match send(&town, name, intent, true).await {
                Told::Misuse => false,
                // Some ask again although they know.
                Told::Final(..) | Told::Over => world.draw(|rng| rng.in_thousand(300)),
                Told::Later => true,
            };
            if !again {
                break;
            }
            world.dawdle(50, 2500).await;
        }
    }
}

/// Sends it, through some gateway; judges the answer.
pub(crate) async fn send(town: &Arc<Town>, client: usize, intent: &Intent, patient: bool) -> Told {
    let world = &town.world;
    let chosen = world.draw(|rng| rng.index(world.plan.gateways));
    let Some(gateway) = town.gateway(chosen) else {
        return Told::Later;
    };
    lock(&town.sent).insert(intent.clone());
    let process = Arc::clone(&gateway.process);
    let slot = slot(town, intent);
    world.tell(format_args!(
        "client{client}: sends {slot} {} to {}",
        intent.amount, process.name
    ));
    if process.is_dead() {
        world.outcome("connection_refused");
        return Told::Later;
    }
    let healed = world.is_healed();
    let patience = world.draw(|rng| {
        let gives_up = !patient || rng.in_thousand(world.plan.disconnects);
        if gives_up && !healed {
            rng.millis(0, 300)
        } else {
            Duration::from_mins(1)
        }
    });
    let handler = {
        let (world, process) = (Arc::clone(world), Arc::clone(&process));
        tower::service_fn(move |request| {
            let handling = app::handle(Arc::clone(&world), Arc::clone(&process), request);
            jostled(&world, handling)
        })
    };
    let service = tower_layer::Layer::layer(&gateway.layer, handler);
    let Ok(request) = request(intent) else {
        return Told::Later;
    };
    let answer = async {
        let response = service.oneshot(request).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        process.step().await;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(Response::from_parts(head, body))
    };
    tokio::select! {
        biased;
        () = process.died() => {
            world.outcome("connection_broke");
            world.tell(format_args!("client{client}: the connection broke"));
            Told::Later
        }
        answer = answer => match answer {
            Ok(answer) => judge(town, client, intent, &answer),
            Err(error) => {
                world.outcome("answer_broke");
                world.tell(format_args!("client{client}: {error}"));
                Told::Later
            }
        },
        () = sleep(patience) => {
            world.fault("client_disconnected");
            world.outcome("gave_up");
            world.tell(format_args!("client{client}: gives up"));
            Told::Later
        }
    }
}

pub(crate) fn slot(town: &Town, intent: &Intent) -> String {
    let scope = match town.world.key_scope() {
        semel_core::KeyScope::Operation => intent.command,
        semel_core::KeyScope::Tenant => "*",
    };
    format!("{}/{scope}/{}", intent.tenant, intent.key)
}

fn request(intent: &Intent) -> http::Result<Request<Full<Bytes>>> {
    let path = path_of(intent.command);
    Request::post(path)
        .header("x-account", intent.tenant)
        .header("idempotency-key", intent.key)
        .header("content-type", "application/json")
        .body(format!("{{\"amount\":{}}}", intent.amount).into())
}

/// Holds an answer against what was sent and what is in the ledger.
fn judge(town: &Town, client: usize, intent: &Intent, answer: &Response<Bytes>) -> Told {
    let world = &town.world;
    let status = answer.status().as_u16();
    let header = |name: &str| {
        answer
            .headers()
            .get(name)
            .and_then(|value| value.to_str().ok())
    };
    let replayed = header("idempotent-replayed").is_some();
    if header(MARK) == Some(FINAL) {
        let kind = if replayed { "replayed" } else { "executed" };
        world.outcome(format!("{kind}_{status}"));
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        world.tell(format_args!(
            "client{client}: {kind} {status} {}",
            text.trim_end_matches('x')
        ));
        let told = is_ours(town, intent, status, &text);
        let printed = format!(
            "{status} {:?} {:?} {text}",
            header("etag"),
            header("content-type")
        );
        if let Told::Final(_, id) = told {
            if !lock(&world.witness).is_completed(id) {
                world.violate("sent_before_stored", format!("op{}: {text}", number(id)));
            }
            let first = world.first_answer(id, &printed);
            if first != printed {
                world.violate("altered_replays", format!("{first:?}, then {printed:?}"));
            }
        }
        return told;
    }
    let code = code(answer.body());
    world.outcome(format!("{code}_{status}"));
    world.tell(format_args!("client{client}: {status} {code}"));
    if answer.status().is_success() && status != 202 {
        world.violate("success_without_effect", format!("{status} {code}"));
    }
    let slot = slot(town, intent);
    let against = |how: &str| {
        let how = format!("{slot}: {how}");
        world.violate("decided_against_the_record", how);
    };
    match code.as_str() {
        "idempotency_key_reused" => Told::Misuse,
        "idempotency_key_expired" => {
            let (windows, now) = (world.plan.windows, world.clock.now());
            if !lock(&world.witness).may_be_over(&slot, windows, now) {
                against("its time is not over");
            }
            Told::Over
        }
        "idempotency_response_not_stored" => {
            if !lock(&world.witness).may_lack_body(&slot) {
                against("no answer was too large");
            }
            Told::Over
        }
        _ => Told::Later,
    }
}

/// Whether the application's answer is about what this client asked for, and true.
fn is_ours(town: &Town, intent: &Intent, status: u16, text: &str) -> Told {
    let world = &town.world;
    let mut words = text.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let (id, entry, tenant, command, amount) = (next(), next(), next(), next(), next());
    let sent = format!("{intent:?}");
    let whole = text.split(' ').count() == app::WORDS;
    let (Ok(id), Ok(entry), true) = (id.parse::<OperationId>(), entry.parse::<usize>(), whole)
    else {
        world.violate("success_without_effect", format!("{text:?} names no entry"));
        return Told::Later;
    };
    if tenant != intent.tenant {
        world.violate("answers_across_tenants", format!("{text:?} to {sent}"));
        return Told::Later;
    }
    if command != intent.command || amount != intent.amount.to_string() {
        world.violate("misuse_accepted", format!("{text:?} to {sent}"));
        return Told::Later;
    }
    let found = lock(&world.ledger).entry(entry).cloned();
    let true_to = found.is_some_and(|found| {
        let same =
            found.id == id && found.slot == slot(town, intent) && found.amount == intent.amount;
        same && found.charged != (status == 402)
    });
    if !true_to {
        world.violate(
            "success_without_effect",
            format!("{status} {text:?} to {sent}"),
        );
    }
    Told::Final(entry, id)
}

/// The code of a refusal, in either dialect.
fn code(body: &Bytes) -> String {
    let body: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let code = body.and_then(|body| {
        let error = body.get("error").cloned().unwrap_or(body);
        Some(error.get("code")?.as_str()?.to_owned())
    });
    code.unwrap_or_else(|| "passed_on".to_owned())
}
