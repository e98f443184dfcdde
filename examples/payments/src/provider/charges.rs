//! `POST /charges`, and lookups of charges.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::json;

use super::faults::{AppliedFault, Fault, FaultHeader, FaultSwitch, Faults};
use super::ledger::{Charge, ChargeRequest, ChargeResult, ChargeStatus, Ledger, OPERATION_ID};
use super::webhooks::{Deliveries, Sender};
use crate::problem::{bad_header, invalid, not_found, problem, unreadable};
use crate::serve::{Running, cut};

/// Makes one request fail: the value is a [`Fault`].
pub(crate) const FAULT_HEADER: &str = "x-provider-fault";
const KEY_HEADER: &str = "idempotency-key";
const MAX_KEY_BYTES: usize = 255;

/// How a request under way is looked up.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Name {
    Key(String),
    Operation(String),
}

/// The state of the provider.
pub(super) struct ProviderState {
    ledger: Mutex<Ledger>,
    switch: FaultSwitch,
    /// Names of requests under way, and how many there are of each.
    pending: Mutex<HashMap<Name, usize>>,
    running: Running,
    webhooks: Option<Arc<Sender>>,
}

impl ProviderState {
    pub(super) fn new(
        ledger: Ledger,
        faults: Faults,
        running: Running,
        webhooks: Option<Arc<Sender>>,
    ) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            switch: FaultSwitch::new(faults),
            pending: Mutex::default(),
            running,
            webhooks,
        }
    }

    pub(super) fn deliveries(&self) -> Deliveries {
        let sender = self.webhooks.as_ref();
        sender.map_or_else(Deliveries::default, |sender| sender.deliveries())
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    pub(super) fn switch(&self) -> &FaultSwitch {
        &self.switch
    }

    /// How many charges are under way.
    pub(super) fn pending(&self) -> usize {
        lock(&self.pending).values().sum()
    }

    pub(super) fn running(&self) -> &Running {
        &self.running
    }

    /// Decides about a request by its fault. The error is the response of a failed request.
    pub(super) async fn decide(
        &self,
        apply: &mut AppliedFault,
    ) -> Result<ChargeStatus, Box<Response>> {
        let broken = match apply.fault {
            Fault::None | Fault::ResetAfterSuccess => return Ok(ChargeStatus::Succeeded),
            Fault::Decline => return Ok(ChargeStatus::Declined),
            Fault::ResetBefore => cut(),
            Fault::Error500 => {
                let detail = "this failure was requested by a fault";
                problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            }
            Fault::Error503 => {
                let detail = "this overload was requested by a fault";
                problem(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
            }
            Fault::Slow => tokio::select! {
                () = apply.hold() => return Ok(ChargeStatus::Succeeded),
                () = self.running.stopping() => cut(),
            },
        };
        Err(Box::new(broken))
    }

    /// Returns when the whole ledger is on the disk.
    pub(super) fn sync_ledger(&self) -> io::Result<()> {
        let sync = self.ledger().sync();
        sync.map_or(Ok(()), |sync| sync.wait())
    }

    async fn perform(
        self: Arc<Self>,
        request: ChargeRequest,
        key: Option<String>,
        mut apply: AppliedFault,
    ) -> Response {
        let operation = request.metadata.get(OPERATION_ID).cloned();
        let name = key.clone().map(Name::Key);
        let name = name.or_else(|| operation.map(Name::Operation));
        let _pending = Pending::new(Arc::clone(&self), name);
        let status = match self.decide(&mut apply).await {
            Ok(status) => status,
            Err(broken) => return *broken,
        };
        // On a thread, since writing blocks, and because a thread cannot be dropped between the
        // write to the file and to the memory. The lock makes duplicates one charge.
        let state = Arc::clone(&self);
        let charging = tokio::task::spawn_blocking(move || {
            let charged = state.ledger().charge(request, key, status)?;
            state.sync_ledger()?;
            Ok(charged)
        });
        let charged: Result<io::Result<ChargeResult>, _> = charging.await;
        if let (Some(webhooks), Ok(Ok(ChargeResult::Created(charge)))) = (&self.webhooks, &charged)
        {
            webhooks.send_event(charge);
        }
        match charged {
            Ok(Ok(_)) if apply.fault == Fault::ResetAfterSuccess => cut(),
            Ok(Ok(ChargeResult::Created(charge))) => answer(&charge),
            Ok(Ok(ChargeResult::Existing(charge))) => replayed(answer(&charge)),
            Ok(Ok(ChargeResult::KeyReused)) => key_reused("this key was used for another charge"),
            Ok(Err(error)) => ledger_failed(&error),
            Err(error) => ledger_failed(&error),
        }
    }
}

pub(super) async fn create(
    State(state): State<Arc<ProviderState>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let (key, named) = match (key_of(&headers), fault_of(&headers)) {
        (Ok(key), Ok(named)) => (key, named),
        (Err(reason), _) | (_, Err(reason)) => return bad_header(reason),
    };
    let request = match serde_json::from_slice::<ChargeRequest>(&body) {
        Ok(request) => request,
        Err(error) => return unreadable(&error),
    };
    if let Err(reason) = request.check() {
        return invalid(reason);
    }
    let apply = state.switch.apply(named);
    let work = Arc::clone(&state).perform(request, key, apply);
    state.running.detach(work).await.unwrap_or_else(cut)
}

pub(super) async fn find(
    State(state): State<Arc<ProviderState>>,
    Path(id): Path<String>,
) -> Response {
    match state.ledger().find(&id) {
        Some(charge) => Json(charge).into_response(),
        None => not_found("there is no such charge"),
    }
}

pub(super) async fn find_by_name(
    State(state): State<Arc<ProviderState>>,
    Query(name): Query<HashMap<String, String>>,
) -> Response {
    let mut given = name.into_iter();
    let name = match (given.next(), given.next()) {
        (Some((name, value)), None) if name == "idempotency_key" => Name::Key(value),
        (Some((name, value)), None) if name == "operation_id" => Name::Operation(value),
        (Some(_) | None, _) => return invalid("send idempotency_key or operation_id"),
    };
    // In this order: a request that ends between two of these reads is found by the next one, so
    // 404 is never wrong. A charge that is still under way may not be on the disk yet.
    let before = lock(&state.pending).contains_key(&name);
    let found = match &name {
        Name::Key(key) => state.ledger().find_by_key(key).cloned(),
        Name::Operation(id) => state.ledger().find_by_operation(id).cloned(),
    };
    let still = lock(&state.pending).contains_key(&name);
    match found {
        Some(charge) if !still => Json(charge).into_response(),
        None if !before && !still => not_found("there is no such charge"),
        Some(_) | None => {
            (StatusCode::ACCEPTED, Json(json!({ "status": "pending" }))).into_response()
        }
    }
}

fn answer(charge: &Charge) -> Response {
    let status = match charge.status {
        ChargeStatus::Succeeded => StatusCode::CREATED,
        ChargeStatus::Declined => StatusCode::PAYMENT_REQUIRED,
    };
    let location = format!("/charges/{}", charge.id);
    (status, [(header::LOCATION, location)], Json(charge)).into_response()
}

pub(super) fn replayed(mut response: Response) -> Response {
    let replayed = HeaderValue::from_static("true");
    response
        .headers_mut()
        .insert("idempotent-replayed", replayed);
    response
}

pub(super) fn key_reused(detail: &str) -> Response {
    let unprocessable = StatusCode::UNPROCESSABLE_ENTITY;
    problem(unprocessable, "idempotency_key_reused", detail)
}

pub(super) fn ledger_failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "no money moved: the ledger could not be written");
    let detail = "the ledger could not be written";
    problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
}

pub(super) fn key_of(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(KEY_HEADER).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(_), Some(_)) => Err("Idempotency-Key occurs twice"),
        (Some(line), None) => match line.to_str() {
            Ok(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Ok(Some(key.to_owned())),
            _ => Err("Idempotency-Key is from 1 to 255 visible characters"),
        },
    }
}

pub(super) fn fault_of(headers: &HeaderMap) -> Result<Option<FaultHeader>, &'static str> {
    let Some(line) = headers.get(FAULT_HEADER) else {
        return Ok(None);
    };
    let named = line.to_str().ok().and_then(FaultHeader::parse);
    named
        .map(Some)
        .ok_or("X-Provider-Fault is not a fault of this provider")
}

/// A request under way. Until it is dropped, lookups do not answer 404.
struct Pending {
    state: Arc<ProviderState>,
    name: Option<Name>,
}

impl Pending {
    fn new(state: Arc<ProviderState>, name: Option<Name>) -> Self {
        if let Some(name) = &name {
            *lock(&state.pending).entry(name.clone()).or_default() += 1;
        }
        Self { state, name }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(name) = &self.name else { return };
        let mut pending = lock(&self.state.pending);
        if let Some(count) = pending.get_mut(name) {
            *count -= 1;
            if *count == 0 {
                pending.remove(name);
            }
        }
    }
}

/// A panic leaves complete entries only: they are added last.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
