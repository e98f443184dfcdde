//! Clients: they retry, give up, misuse keys, and compare each answer with their request and with
//! the provider's ledger.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use semel_core::{Clock as _, OperationId};
use tokio::time::sleep;
use tower::ServiceExt as _;

use crate::app::{self, FINAL, MARK};
use crate::cluster::Cluster;
use crate::plan::{Intent, path_of};
use crate::reorder::reorder;
use crate::scenario::{lock, number};

/// The result of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientResult {
    /// The application's final answer, which every retry gets: entry and operation.
    Final(usize, OperationId),
    /// The operation is finished, and its response is no longer stored.
    Expired,
    /// The key was used for another request.
    Misuse,
    /// No final answer yet.
    Later,
}

/// The most requests of one client for one operation.
const TRIES: u64 = 8;

/// Runs one client: it takes part in bursts of requests, each until it gets the final answer or gives
/// up.
pub(crate) async fn run(cluster: Arc<Cluster>, name: usize) {
    let scenario = &cluster.scenario;
    for (at, intent) in &scenario.plan.bursts {
        sleep(at.saturating_sub(scenario.elapsed())).await;
        scenario.sleep_random(0, 200).await;
        if scenario.draw(|rng| rng.in_thousand(300)) {
            continue;
        }
        let tries = scenario.draw(|rng| rng.between(1, TRIES));
        for _ in 0..tries {
            if scenario.draw(|rng| rng.in_thousand(scenario.plan.misuse)) {
                scenario.fault("client_misused_key");
                let other = Intent {
                    amount: intent.amount + 1,
                    ..intent.clone()
                };
                send(&cluster, name, &other, false).await;
                continue;
            }
            let again = match send(&cluster, name, intent, true).await {
                ClientResult::Misuse => false,
                // Some retry although they have the answer.
                ClientResult::Final(..) | ClientResult::Expired => {
                    scenario.draw(|rng| rng.in_thousand(300))
                }
                ClientResult::Later => true,
            };
            if !again {
                break;
            }
            scenario.sleep_random(50, 2500).await;
        }
    }
}

/// Sends a request through some gateway, and checks the answer.
pub(crate) async fn send(
    cluster: &Arc<Cluster>,
    client: usize,
    intent: &Intent,
    patient: bool,
) -> ClientResult {
    let scenario = &cluster.scenario;
    let chosen = scenario.draw(|rng| rng.index(scenario.plan.gateways));
    let Some(gateway) = cluster.gateway(chosen) else {
        return ClientResult::Later;
    };
    lock(&cluster.sent).insert(intent.clone());
    let process = Arc::clone(&gateway.process);
    let slot = slot(cluster, intent);
    scenario.record_event(format_args!(
        "client{client}: sends {slot} {} to {}",
        intent.amount, process.name
    ));
    if process.is_dead() {
        scenario.outcome("connection_refused");
        return ClientResult::Later;
    }
    let healed = scenario.is_healed();
    let patience = scenario.draw(|rng| {
        let gives_up = !patient || rng.in_thousand(scenario.plan.disconnects);
        if gives_up && !healed {
            rng.millis(0, 300)
        } else {
            Duration::from_mins(1)
        }
    });
    let handler = {
        let (scenario, process) = (Arc::clone(scenario), Arc::clone(&process));
        tower::service_fn(move |request| {
            let handling = app::handle(Arc::clone(&scenario), Arc::clone(&process), request);
            reorder(&scenario, handling)
        })
    };
    let service = tower_layer::Layer::layer(&gateway.layer, handler);
    let Ok(request) = request(intent) else {
        return ClientResult::Later;
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
            scenario.outcome("connection_broke");
            scenario.record_event(format_args!("client{client}: the connection broke"));
            ClientResult::Later
        }
        answer = answer => match answer {
            Ok(answer) => check_answer(cluster, client, intent, &answer),
            Err(error) => {
                scenario.outcome("answer_broke");
                scenario.record_event(format_args!("client{client}: {error}"));
                ClientResult::Later
            }
        },
        () = sleep(patience) => {
            scenario.fault("client_disconnected");
            scenario.outcome("gave_up");
            scenario.record_event(format_args!("client{client}: gives up"));
            ClientResult::Later
        }
    }
}

pub(crate) fn slot(cluster: &Cluster, intent: &Intent) -> String {
    let scope = match cluster.scenario.key_scope() {
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

/// Compares an answer with the request and the ledger.
fn check_answer(
    cluster: &Cluster,
    client: usize,
    intent: &Intent,
    answer: &Response<Bytes>,
) -> ClientResult {
    let scenario = &cluster.scenario;
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
        scenario.outcome(format!("{kind}_{status}"));
        let text = String::from_utf8_lossy(answer.body()).into_owned();
        scenario.record_event(format_args!(
            "client{client}: {kind} {status} {}",
            text.trim_end_matches('x')
        ));
        let result = check_final(cluster, intent, status, &text);
        let printed = format!(
            "{status} {:?} {:?} {text}",
            header("etag"),
            header("content-type")
        );
        if let ClientResult::Final(_, id) = result {
            if !lock(&scenario.witness).is_completed(id) {
                scenario.violate("sent_before_stored", format!("op{}: {text}", number(id)));
            }
            let first = scenario.first_answer(id, &printed);
            if first != printed {
                scenario.violate("altered_replays", format!("{first:?}, then {printed:?}"));
            }
        }
        return result;
    }
    let code = code(answer.body());
    scenario.outcome(format!("{code}_{status}"));
    scenario.record_event(format_args!("client{client}: {status} {code}"));
    if answer.status().is_success() && status != 202 {
        scenario.violate("success_without_effect", format!("{status} {code}"));
    }
    let slot = slot(cluster, intent);
    let contradiction = |how: &str| {
        let how = format!("{slot}: {how}");
        scenario.violate("decided_against_the_record", how);
    };
    match code.as_str() {
        "idempotency_key_reused" => ClientResult::Misuse,
        "idempotency_key_expired" => {
            let (windows, now) = (scenario.plan.windows, scenario.clock.now());
            if !lock(&scenario.witness).may_be_expired(&slot, windows, now) {
                contradiction("its window has not ended");
            }
            ClientResult::Expired
        }
        "idempotency_response_not_stored" => {
            if !lock(&scenario.witness).may_lack_body(&slot) {
                contradiction("no response was too large");
            }
            ClientResult::Expired
        }
        _ => ClientResult::Later,
    }
}

/// Checks that the application's answer matches the request and the ledger.
fn check_final(cluster: &Cluster, intent: &Intent, status: u16, text: &str) -> ClientResult {
    let scenario = &cluster.scenario;
    let mut words = text.split(' ');
    let mut next = || words.next().unwrap_or_default();
    let (id, entry, tenant, command, amount) = (next(), next(), next(), next(), next());
    let sent = format!("{intent:?}");
    let complete = text.split(' ').count() == app::ANSWER_PARTS;
    let (Ok(id), Ok(entry), true) = (id.parse::<OperationId>(), entry.parse::<usize>(), complete)
    else {
        scenario.violate("success_without_effect", format!("{text:?} names no entry"));
        return ClientResult::Later;
    };
    if tenant != intent.tenant {
        scenario.violate("answers_across_tenants", format!("{text:?} to {sent}"));
        return ClientResult::Later;
    }
    if command != intent.command || amount != intent.amount.to_string() {
        scenario.violate("misuse_accepted", format!("{text:?} to {sent}"));
        return ClientResult::Later;
    }
    let found = lock(&scenario.ledger).entry(entry).cloned();
    let matches = found.is_some_and(|found| {
        let same =
            found.id == id && found.slot == slot(cluster, intent) && found.amount == intent.amount;
        same && found.charged != (status == 402)
    });
    if !matches {
        scenario.violate(
            "success_without_effect",
            format!("{status} {text:?} to {sent}"),
        );
    }
    ClientResult::Final(entry, id)
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
