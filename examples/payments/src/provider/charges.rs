//! `POST /charges`, and asking about charges.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;

use super::faults::{Fault, Faults, Named, Strike, Switch};
use super::ledger::{Charge, ChargeRequest, ChargeStatus, Charged, Ledger};
use super::webhooks::{Deliveries, Sender};
use crate::problem::{bad_header, invalid, not_found, problem, unreadable};
use crate::serve::{Running, cut};

/// Makes one request fail.
pub(crate) const FAULT_HEADER: &str = "x-provider-fault";
const KEY_HEADER: &str = "idempotency-key";
const MAX_KEY_BYTES: usize = 255;

/// Where charges are made.
pub(super) struct Desk {
    ledger: Mutex<Ledger>,
    switch: Switch,
    /// Keys of requests under way, and how many there are of each.
    pending: Mutex<HashMap<String, usize>>,
    running: Running,
    webhooks: Option<Arc<Sender>>,
}

impl Desk {
    pub(super) fn new(
        ledger: Ledger,
        faults: Faults,
        running: Running,
        webhooks: Option<Arc<Sender>>,
    ) -> Self {
        Self {
            ledger: Mutex::new(ledger),
            switch: Switch::new(faults),
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

    pub(super) fn switch(&self) -> &Switch {
        &self.switch
    }

    /// How many charges are under way.
    pub(super) fn pending(&self) -> usize {
        lock(&self.pending).values().sum()
    }

    pub(super) fn running(&self) -> &Running {
        &self.running
    }

    /// What becomes of a request, by the fault that strikes it; else how it breaks.
    pub(super) async fn decide(&self, strike: &mut Strike) -> Result<ChargeStatus, Box<Response>> {
        let broken = match strike.fault {
            Fault::None | Fault::ResetAfterSuccess => return Ok(ChargeStatus::Succeeded),
            Fault::Decline => return Ok(ChargeStatus::Declined),
            Fault::ResetBefore => cut(),
            Fault::Error500 => {
                let detail = "the provider broke, as it was told to";
                problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", detail)
            }
            Fault::Error503 => {
                let detail = "the provider is overloaded, as it was told to be";
                problem(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
            }
            Fault::Slow => tokio::select! {
                () = strike.hold() => return Ok(ChargeStatus::Succeeded),
                () = self.running.stopping() => cut(),
            },
        };
        Err(Box::new(broken))
    }

    async fn perform(
        self: Arc<Self>,
        request: ChargeRequest,
        key: Option<String>,
        mut strike: Strike,
    ) -> Response {
        let _pending = Pending::new(Arc::clone(&self), key.clone());
        let status = match self.decide(&mut strike).await {
            Ok(status) => status,
            Err(broken) => return *broken,
        };
        // On a thread, since writing blocks. A thread also cannot be dropped halfway, between
        // the file and the memory. One at a time: the lock is what makes duplicates one charge.
        let desk = Arc::clone(&self);
        let charged =
            tokio::task::spawn_blocking(move || desk.ledger().charge(request, key, status)).await;
        if let (Some(webhooks), Ok(Ok(Charged::Made(charge)))) = (&self.webhooks, &charged) {
            webhooks.tell(charge);
        }
        match charged {
            Ok(Ok(_)) if strike.fault == Fault::ResetAfterSuccess => cut(),
            Ok(Ok(Charged::Made(charge))) => answer(&charge),
            Ok(Ok(Charged::Before(charge))) => replayed(answer(&charge)),
            Ok(Ok(Charged::KeyReused)) => key_reused("this key was used for another charge"),
            Ok(Err(error)) => ledger_failed(&error),
            Err(error) => ledger_failed(&error),
        }
    }
}

pub(super) async fn create(
    State(desk): State<Arc<Desk>>,
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
    let strike = desk.switch.strike(named);
    let work = Arc::clone(&desk).perform(request, key, strike);
    desk.running.detach(work).await.unwrap_or_else(cut)
}

pub(super) async fn find(State(desk): State<Arc<Desk>>, Path(id): Path<String>) -> Response {
    match desk.ledger().find(&id) {
        Some(charge) => Json(charge).into_response(),
        None => not_found("there is no such charge"),
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ByKey {
    idempotency_key: String,
}

pub(super) async fn find_by_key(
    State(desk): State<Arc<Desk>>,
    Query(ByKey { idempotency_key }): Query<ByKey>,
) -> Response {
    // In this order: a request that ends between the two looks is found by the second. The
    // other way around it would be found by neither, and "no" would be a lie.
    let is_pending = lock(&desk.pending).contains_key(&idempotency_key);
    match desk.ledger().find_by_key(&idempotency_key) {
        Some(charge) => Json(charge).into_response(),
        None if is_pending => {
            (StatusCode::ACCEPTED, Json(json!({ "status": "pending" }))).into_response()
        }
        None => not_found("there is no charge with this key"),
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
        (Some(_), Some(_)) => Err("Idempotency-Key is there twice"),
        (Some(line), None) => match line.to_str() {
            Ok(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Ok(Some(key.to_owned())),
            _ => Err("Idempotency-Key is from 1 to 255 visible characters"),
        },
    }
}

pub(super) fn fault_of(headers: &HeaderMap) -> Result<Option<Named>, &'static str> {
    let Some(line) = headers.get(FAULT_HEADER) else {
        return Ok(None);
    };
    let named = line.to_str().ok().and_then(Named::parse);
    named
        .map(Some)
        .ok_or("X-Provider-Fault names no fault of this provider")
}

/// A key whose request is under way. Until it is dropped nobody is told that there is no charge.
struct Pending {
    desk: Arc<Desk>,
    key: Option<String>,
}

impl Pending {
    fn new(desk: Arc<Desk>, key: Option<String>) -> Self {
        if let Some(key) = &key {
            *lock(&desk.pending).entry(key.clone()).or_default() += 1;
        }
        Self { desk, key }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(key) = &self.key else { return };
        let mut pending = lock(&self.desk.pending);
        if let Some(count) = pending.get_mut(key) {
            *count -= 1;
            if *count == 0 {
                pending.remove(key);
            }
        }
    }
}

/// A thread that panicked inside left whole entries or none: they are added last.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
