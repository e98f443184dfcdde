//! The handlers.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde::Deserialize;
use uuid::Uuid;

use super::book::{Book, BookError, Entry, NewPayment, Payment, PaymentStatus};
use crate::client::{CallOutcome, ChargeLookup, Provider};
use crate::problem::{bad_header, invalid, not_found, problem, unreadable};
use crate::provider::{Charge, ChargeRequest, ChargeStatus, FaultHeader, MAX_AMOUNT, is_currency};
use crate::serve::{Running, cut};

const OPERATION_HEADER: &str = "semel-operation-id";
const DOWNSTREAM_KEY_HEADER: &str = "semel-downstream-key";
const DEMO_FAULT_HEADER: &str = "x-demo-fault";
const OUTCOME_HEADER: HeaderName = HeaderName::from_static("semel-outcome");
const RESOURCE_HEADER: HeaderName = HeaderName::from_static("semel-resource");
/// The provider's limit for keys and references.
const MAX_TEXT_BYTES: usize = 255;

/// The service's state.
pub(super) struct Service {
    pub(super) book: Book,
    pub(super) provider: Provider,
    pub(super) heeds_gateway: bool,
    pub(super) running: Running,
}

/// The body of `POST /payments`. Other fields are ignored.
#[derive(Deserialize)]
struct PaymentRequest {
    /// In minor units. A fraction or a string is refused rather than rounded.
    amount: i64,
    currency: String,
    #[serde(alias = "accountId")]
    account: String,
    #[serde(default, alias = "merchantReference")]
    merchant_reference: Option<String>,
}

impl PaymentRequest {
    fn check(&self) -> Result<(), &'static str> {
        let text = |text: &str| !text.is_empty() && text.len() <= MAX_TEXT_BYTES;
        if !(1..=MAX_AMOUNT).contains(&self.amount) {
            return Err("amount is from 1 to 1000000000000 minor units");
        }
        if !is_currency(&self.currency) {
            return Err("currency is three capital letters");
        }
        if !text(&self.account) || !self.merchant_reference.as_deref().is_none_or(text) {
            return Err("account and merchant_reference are from 1 to 255 bytes");
        }
        Ok(())
    }
}

/// What the service reads from the headers.
struct RequestContext {
    operation_id: Option<String>,
    downstream_key: Option<String>,
    fault: Option<String>,
}

impl RequestContext {
    fn read(headers: &HeaderMap, heeds_gateway: bool) -> Result<Self, &'static str> {
        let fault = single(headers, DEMO_FAULT_HEADER)?;
        if fault
            .as_deref()
            .is_some_and(|fault| FaultHeader::parse(fault).is_none())
        {
            return Err("X-Demo-Fault is not a fault of the provider");
        }
        let gateway = |name| {
            if heeds_gateway {
                single(headers, name)
            } else {
                Ok(None)
            }
        };
        Ok(Self {
            operation_id: gateway(OPERATION_HEADER)?,
            downstream_key: gateway(DOWNSTREAM_KEY_HEADER)?,
            fault,
        })
    }
}

fn single(headers: &HeaderMap, name: &str) -> Result<Option<String>, &'static str> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Ok(None),
        (Some(line), None) => match line.to_str() {
            Ok(text) if (1..=MAX_TEXT_BYTES).contains(&text.len()) => Ok(Some(text.to_owned())),
            _ => Err("a header is empty, too long, or not ASCII"),
        },
        (Some(_), Some(_)) => Err("a header occurs twice"),
    }
}

/// Whether the provider gets a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keyed {
    Yes,
    No,
}

pub(super) async fn create(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    handle(service, &headers, &body, Keyed::Yes).await
}

pub(super) async fn create_unkeyed(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    handle(service, &headers, &body, Keyed::No).await
}

async fn handle(service: Arc<Service>, headers: &HeaderMap, body: &[u8], keyed: Keyed) -> Response {
    let context = match RequestContext::read(headers, service.heeds_gateway) {
        Ok(context) => context,
        Err(reason) => return bad_header(reason),
    };
    let request = match serde_json::from_slice::<PaymentRequest>(body) {
        Ok(request) => request,
        Err(error) => return unreadable(&error),
    };
    if let Err(reason) = request.check() {
        return invalid(reason);
    }
    let work = Arc::clone(&service).pay(request, context, keyed);
    service.running.detach(work).await.unwrap_or_else(cut)
}

impl Service {
    async fn pay(
        self: Arc<Self>,
        request: PaymentRequest,
        context: RequestContext,
        keyed: Keyed,
    ) -> Response {
        let key = context.downstream_key;
        let downstream_key = match keyed {
            Keyed::Yes => Some(key.unwrap_or_else(|| Uuid::now_v7().to_string())),
            Keyed::No => None,
        };
        let new = NewPayment {
            id: format!("pay_{}", Uuid::now_v7().simple()),
            operation_id: context.operation_id,
            downstream_key,
            amount: request.amount,
            currency: request.currency,
            account: request.account,
            merchant_reference: request.merchant_reference,
        };
        let entry = match self.book.open_payment(new).await {
            Ok(Some(entry)) => entry,
            Ok(None) => return invalid("this operation is another payment"),
            Err(error) => {
                let detail = "the payment could not be stored, and nothing was charged";
                return not_executed(&log_failure(&error, detail));
            }
        };
        if entry.payment.charge_id.is_some() && keyed == Keyed::Yes {
            return answer(entry.payment, "");
        }
        let charge = charge_request(&entry.payment);
        let key = entry.downstream_key.as_deref();
        let fault = context.fault.as_deref();
        let charging = self.provider.charge(&charge, key, fault).await;
        let (status, charge_id, detail) = match charging {
            CallOutcome::Decided(charge) if is_for(&charge, &entry.payment) => {
                (decision(charge.status), Some(charge.id), String::new())
            }
            CallOutcome::Decided(_) => {
                let detail = "the provider answered with another charge".to_owned();
                (PaymentStatus::Unknown, None, detail)
            }
            CallOutcome::NotSent(detail) => (PaymentStatus::NotExecuted, None, detail),
            CallOutcome::Unknown(detail) => (PaymentStatus::Unknown, None, detail),
        };
        match self.book.settle(&entry, status, charge_id).await {
            Ok(settled) => answer(settled.payment, &detail),
            Err(error) => unknown(&log_failure(&error, "the outcome could not be stored")),
        }
    }

    /// Looks up the outcome of a payment at the provider, unless it is known.
    async fn look_up(&self, entry: Entry) -> Result<Lookup, BookError> {
        match entry.payment.status {
            PaymentStatus::Succeeded | PaymentStatus::Declined => {
                return Ok(Lookup::Decided(entry.payment));
            }
            PaymentStatus::NotExecuted => return Ok(Lookup::Nothing),
            PaymentStatus::Processing | PaymentStatus::Unknown => {}
        }
        let charge = match (&entry.downstream_key, &entry.payment.operation_id) {
            (Some(key), _) => self.provider.look_up("idempotency_key", key).await,
            (None, Some(id)) => self.provider.look_up("operation_id", id).await,
            // A charge without key and operation cannot be looked up.
            (None, None) => ChargeLookup::Undecided,
        };
        match charge {
            ChargeLookup::Decided(charge) if is_for(&charge, &entry.payment) => {
                let status = decision(charge.status);
                let settled = self.book.settle(&entry, status, Some(charge.id)).await?;
                Ok(Lookup::Decided(settled.payment))
            }
            // While this process is still calling, the provider may not have received the call yet.
            ChargeLookup::Nothing if entry.payment.status == PaymentStatus::Unknown => {
                Ok(Lookup::Nothing)
            }
            ChargeLookup::Nothing | ChargeLookup::Decided(_) | ChargeLookup::Undecided => {
                Ok(Lookup::Undecided(entry.payment))
            }
        }
    }
}

enum Lookup {
    Decided(Payment),
    Nothing,
    Undecided(Payment),
}

pub(super) async fn find(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Response {
    match service.book.find(id).await {
        Ok(Some(entry)) => Json(entry.payment).into_response(),
        Ok(None) => not_found("there is no such payment"),
        Err(error) => unreadable_book(&error),
    }
}

pub(super) async fn find_by_operation(
    State(service): State<Arc<Service>>,
    Path(operation_id): Path<String>,
) -> Response {
    let found = match service.book.find_by_operation(operation_id).await {
        Ok(Some(entry)) => service.look_up(entry).await,
        Ok(None) => return not_found("this operation is not known here"),
        Err(error) => Err(error),
    };
    match found {
        // The same status as in the answer to `POST /payments`: 402 where it was declined.
        Ok(Lookup::Decided(payment)) if payment.status == PaymentStatus::Declined => {
            (StatusCode::PAYMENT_REQUIRED, Json(payment)).into_response()
        }
        Ok(Lookup::Decided(payment)) => Json(payment).into_response(),
        Ok(Lookup::Undecided(payment)) => (StatusCode::ACCEPTED, Json(payment)).into_response(),
        Ok(Lookup::Nothing) => not_found("this operation charged nothing"),
        Err(error) => unreadable_book(&error),
    }
}

pub(super) async fn summary(State(service): State<Arc<Service>>) -> Response {
    match service.book.summary().await {
        Ok(summary) => Json(summary).into_response(),
        Err(error) => unreadable_book(&error),
    }
}

/// The same for every execution of an operation: the provider refuses a key with another body. So
/// the payment's id, which is new each time, is only the last resort.
fn charge_request(payment: &Payment) -> ChargeRequest {
    let reference = payment.merchant_reference.as_ref();
    let reference = reference.or(payment.operation_id.as_ref());
    ChargeRequest {
        amount: payment.amount,
        currency: payment.currency.clone(),
        reference: reference.unwrap_or(&payment.id).clone(),
        card: None,
        metadata: payment
            .operation_id
            .iter()
            .map(|id| ("operation_id".to_owned(), id.clone()))
            .collect(),
    }
}

/// A key that was used before can return the charge of another payment.
fn is_for(charge: &Charge, payment: &Payment) -> bool {
    let request = charge_request(payment);
    charge.amount == request.amount
        && charge.currency == request.currency
        && charge.reference == request.reference
}

fn decision(status: ChargeStatus) -> PaymentStatus {
    match status {
        ChargeStatus::Succeeded => PaymentStatus::Succeeded,
        ChargeStatus::Declined => PaymentStatus::Declined,
    }
}

/// The response to `POST /payments`.
fn answer(payment: Payment, detail: &str) -> Response {
    let location = [
        (header::LOCATION, format!("/payments/{}", payment.id)),
        (RESOURCE_HEADER, format!("payment/{}", payment.id)),
    ];
    match payment.status {
        PaymentStatus::Succeeded => (StatusCode::CREATED, location, Json(payment)).into_response(),
        PaymentStatus::Declined => {
            (StatusCode::PAYMENT_REQUIRED, location, Json(payment)).into_response()
        }
        PaymentStatus::NotExecuted => not_executed(detail),
        PaymentStatus::Unknown | PaymentStatus::Processing => {
            (location, unknown(detail)).into_response()
        }
    }
}

/// 503 with the header that makes a retry safe.
fn not_executed(detail: &str) -> Response {
    let outcome = HeaderValue::from_static("not-executed");
    let refusal = problem(
        StatusCode::SERVICE_UNAVAILABLE,
        "provider_unreachable",
        detail,
    );
    ([(OUTCOME_HEADER, outcome)], refusal).into_response()
}

/// 504: the charge may have been made, so that neither a retry nor giving up is safe.
fn unknown(detail: &str) -> Response {
    let outcome = HeaderValue::from_static("unknown");
    let refusal = problem(
        StatusCode::GATEWAY_TIMEOUT,
        "payment_outcome_unknown",
        detail,
    );
    ([(OUTCOME_HEADER, outcome)], refusal).into_response()
}

fn log_failure(error: &BookError, detail: &str) -> String {
    tracing::error!(%error, "{detail}");
    detail.to_owned()
}

fn unreadable_book(error: &BookError) -> Response {
    let detail = log_failure(error, "the payments cannot be read");
    problem(StatusCode::INTERNAL_SERVER_ERROR, "internal", &detail)
}
