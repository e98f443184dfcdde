//! Webhooks of the provider: an event for each charge, signed as in Standard Webhooks, and delivered
//! unreliably on request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::{Client, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::Sha256;
use uuid::Uuid;

use super::faults::happens;
use super::ledger::{Charge, ChargeStatus};
use crate::Error;
use crate::serve::Running;

/// How often an event is sent until the receiver accepts it.
const ATTEMPTS: u32 = 5;
/// Between two attempts at first; it doubles.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The receiver of events, and how delivery fails.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Webhooks {
    /// The receiver.
    pub url: String,
    /// `whsec_` and the key in base64.
    pub secret: String,
    /// The probability that an event is never sent.
    pub drop: f64,
    /// The probability that it is sent twice.
    pub duplicate: f64,
    /// The probability that a forged event with the opposite outcome is sent as well, signed with a
    /// wrong secret.
    pub forge: f64,
    /// The longest random delay of an event, so that later ones overtake it.
    pub late: Duration,
}

impl Webhooks {
    /// Events that arrive once, in order.
    pub fn new(url: impl Into<String>, secret: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            secret: secret.into(),
            drop: 0.0,
            duplicate: 0.0,
            forge: 0.0,
            late: Duration::ZERO,
        }
    }
}

/// Counts of deliveries: the answer of `GET /webhooks/summary`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deliveries {
    /// Accepted by the receiver, duplicates included.
    pub taken: u64,
    /// Not accepted after the last attempt.
    pub given_up: u64,
    /// Never sent.
    pub dropped: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Forged, and refused with 401.
    pub forged_refused: u64,
    /// Forged, and accepted. Always 0, or the receiver is broken.
    pub forged_taken: u64,
    /// On the way.
    pub under_way: u64,
}

pub(super) struct Sender {
    config: Webhooks,
    key: Vec<u8>,
    client: Client,
    running: Running,
    counts: Mutex<Deliveries>,
    under_way: AtomicU64,
}

impl Sender {
    pub(super) fn new(config: Webhooks, running: Running) -> Result<Arc<Self>, Error> {
        let key = config.secret.strip_prefix("whsec_").unwrap_or_default();
        let key = STANDARD.decode(key).unwrap_or_default();
        if key.is_empty() {
            return Err(Error::WebhookSecret);
        }
        let client = Client::builder().timeout(TIMEOUT).no_proxy().build()?;
        Ok(Arc::new(Self {
            config,
            key,
            client,
            running,
            counts: Mutex::default(),
            under_way: AtomicU64::new(0),
        }))
    }

    pub(super) fn deliveries(&self) -> Deliveries {
        Deliveries {
            under_way: self.under_way.load(Ordering::SeqCst),
            ..*self.counts.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Sends the event of a charge in the background.
    pub(super) fn send_event(self: &Arc<Self>, charge: &Charge) {
        if happens(self.config.forge) {
            self.send(Event::of(charge, opposite(charge.status)), vec![7; 32]);
        }
        if happens(self.config.drop) {
            return self.count(|counts| counts.dropped += 1);
        }
        let event = Event::of(charge, charge.status);
        if happens(self.config.duplicate) {
            self.count(|counts| counts.duplicated += 1);
            self.send(event.clone(), self.key.clone());
        }
        self.send(event, self.key.clone());
    }

    fn send(self: &Arc<Self>, event: Event, key: Vec<u8>) {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let (sender, late) = (
            Arc::clone(self),
            self.config.late.mul_f64(random_fraction()),
        );
        let running = self.running.clone();
        tokio::spawn(async move {
            let deliver = async {
                tokio::time::sleep(late).await;
                sender.deliver(&event, &key).await;
            };
            running.track(deliver).await;
            sender.under_way.fetch_sub(1, Ordering::SeqCst);
        });
    }

    async fn deliver(&self, event: &Event, key: &[u8]) {
        let genuine = *key == *self.key;
        let mut pause = PAUSE;
        for _ in 0..ATTEMPTS {
            match self.post(event, key).await {
                Some(status) if !genuine && status == StatusCode::UNAUTHORIZED => {
                    return self.count(|counts| counts.forged_refused += 1);
                }
                Some(_) if !genuine => return self.count(|counts| counts.forged_taken += 1),
                Some(status) if status.is_success() => {
                    return self.count(|counts| counts.taken += 1);
                }
                Some(_) | None => {}
            }
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
        self.count(|counts| counts.given_up += 1);
    }

    async fn post(&self, event: &Event, key: &[u8]) -> Option<StatusCode> {
        let now = seconds()?;
        let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
        mac.update(format!("{}.{now}.", event.id).as_bytes());
        mac.update(event.body.as_bytes());
        let signature = STANDARD.encode(mac.finalize().into_bytes());
        let request = self
            .client
            .post(&self.config.url)
            .header("webhook-id", &event.id)
            .header("webhook-timestamp", now)
            .header("webhook-signature", format!("v1,{signature}"))
            .header("content-type", "application/json")
            .body(event.body.clone());
        Some(request.send().await.ok()?.status())
    }

    fn count(&self, change: impl FnOnce(&mut Deliveries)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// An event, the same in every delivery.
#[derive(Clone)]
struct Event {
    id: String,
    body: String,
}

impl Event {
    fn of(charge: &Charge, status: ChargeStatus) -> Self {
        let object = Charge {
            status,
            ..charge.clone()
        };
        let kind = match status {
            ChargeStatus::Succeeded => "payment.succeeded",
            ChargeStatus::Declined => "payment.declined",
        };
        let body = json!({
            "type": kind,
            "data": { "object": object, "metadata": charge.metadata },
        });
        Self {
            id: format!("evt_{}", Uuid::now_v7().simple()),
            body: body.to_string(),
        }
    }
}

fn opposite(status: ChargeStatus) -> ChargeStatus {
    match status {
        ChargeStatus::Succeeded => ChargeStatus::Declined,
        ChargeStatus::Declined => ChargeStatus::Succeeded,
    }
}

/// The timestamp of a signature.
#[allow(
    clippy::disallowed_methods,
    reason = "the provider is not part of Semel and has its own clock"
)]
fn seconds() -> Option<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.ok().map(|now| now.as_secs())
}

/// A random number from 0 to 1.
fn random_fraction() -> f64 {
    let [.., a, b, c, d] = *Uuid::now_v7().as_bytes();
    f64::from(u32::from_be_bytes([a, b, c, d])) / f64::from(u32::MAX)
}
