//! The API itself.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Request, Response};
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

use super::defect::{ApiStyle, Defect};

const LEASE: Duration = Duration::from_secs(2);
const LONGEST_KEY: usize = 255;
const LARGEST: usize = 1 << 20;
/// The delay between accepting an operation and executing it.
const LATER: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct StoredResponse {
    status: u16,
    body: Bytes,
    location: Option<String>,
}

/// Something that happened.
struct Effect {
    reference: String,
    key: String,
    at: Instant,
}

#[derive(Clone)]
enum State {
    Running(Instant),
    Done(StoredResponse),
    NotStored,
    Unknown,
}

struct Record {
    fingerprint: String,
    state: State,
    /// Whether a retry broke on it.
    broke: bool,
}

impl Record {
    fn new(fingerprint: String, state: State) -> Self {
        Self {
            fingerprint,
            state,
            broke: false,
        }
    }
}

#[derive(Default)]
struct Ledger {
    records: HashMap<String, Record>,
    effects: Vec<Effect>,
    running: Vec<AbortHandle>,
    executions: usize,
    in_flight: usize,
    slowed: bool,
    broken: bool,
    crashes: usize,
}

pub(crate) struct Api {
    defect: Defect,
    style: ApiStyle,
    ledger: Mutex<Ledger>,
}

/// The decision about a request before anything is executed.
enum Decision {
    Answer(StoredResponse, bool),
    Execute(Option<String>),
    /// Executed, and nothing comes of it but an error.
    Break(String),
}

impl Api {
    pub(crate) fn new(defect: Defect, style: ApiStyle) -> Self {
        Self {
            defect,
            style,
            ledger: Mutex::default(),
        }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many effects a counter of this kind shows that is so far behind.
    pub(crate) fn effects(&self, kind: &str, name: &str, lag: Duration) -> usize {
        let ledger = self.ledger();
        let shown = ledger.effects.iter().filter(|one| one.at.elapsed() >= lag);
        let counted = shown.filter(|one| match kind {
            "count" => one.reference == name,
            "count-key" => one.key == name,
            _ => true,
        });
        counted.count()
    }

    pub(crate) fn all_effects(&self) -> usize {
        self.ledger().effects.len()
    }

    pub(crate) fn break_store(&self, broken: bool) {
        self.ledger().broken = broken;
    }

    /// Everything that runs ends; what was on the disk is still there.
    pub(crate) fn crash(&self) {
        let mut ledger = self.ledger();
        ledger.crashes += 1;
        for task in ledger.running.drain(..) {
            task.abort();
        }
        if self.defect == Defect::CrashForgets {
            ledger.records.clear();
        }
        for record in ledger.records.values_mut() {
            if matches!(record.state, State::Running(_)) {
                record.state = State::Unknown;
            }
        }
    }

    pub(crate) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> io::Result<Response<Full<Bytes>>> {
        let headers = request.headers().clone();
        // A body that breaks off is no request.
        let body = request
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let (reply, replayed) = match body {
            Ok(body) => self.limited(&headers, body).await,
            Err(_) => (refused(400, "broken"), false),
        };
        if reply.status == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let mut response = Response::builder()
            .status(reply.status)
            .header("content-type", "application/json");
        if reply.status == 409 || reply.status == 202 {
            response = response.header("retry-after", "1");
        }
        if let Some(location) = reply.location {
            response = response.header("location", location);
        }
        if replayed && !self.style.is_plain() {
            response = response.header("idempotent-replayed", "true");
        }
        Ok(response.body(Full::new(reply.body)).unwrap())
    }

    async fn limited(self: &Arc<Self>, headers: &HeaderMap, body: Bytes) -> (StoredResponse, bool) {
        if self.defect == Defect::Limits && self.ledger().in_flight > 0 {
            return (refused(429, "limited"), false);
        }
        self.ledger().in_flight += 1;
        let _leaves = Leaves(self.clone());
        self.decide(headers, body).await
    }

    async fn decide(self: &Arc<Self>, headers: &HeaderMap, body: Bytes) -> (StoredResponse, bool) {
        let key = match self.key(headers) {
            Ok(key) => key,
            Err(reply) => return self.or_turned_away(reply, false),
        };
        let decision = match key {
            Some(key) => loop {
                let decision = self.reserve(headers, &key, &body);
                let Decision::Answer(reply, _) = &decision else {
                    break decision;
                };
                if self.style != ApiStyle::Waits || reply.status != 409 || unknown(reply) {
                    break decision;
                }
                // sleeps because a duplicate waits; the clock is paused and costs nothing.
                sleep(Duration::from_millis(50)).await;
            },
            None => Decision::Execute(None),
        };
        match decision {
            Decision::Answer(reply, replayed) => self.or_turned_away(reply, replayed),
            Decision::Execute(identity) => (self.execute(headers, identity, body).await, false),
            Decision::Break(identity) => {
                self.happen(&Work::new(headers, &body, Some(identity)));
                (refused(500, "broke"), false)
            }
        }
    }

    fn or_turned_away(&self, reply: StoredResponse, replayed: bool) -> (StoredResponse, bool) {
        match self.defect {
            Defect::TurnsAway(status) => (refused(status, "turned away"), false),
            _ => (reply, replayed),
        }
    }

    /// The key, none where it is not needed, or why it is refused.
    fn key(&self, headers: &HeaderMap) -> Result<Option<String>, StoredResponse> {
        let lines: Vec<&[u8]> = headers
            .get_all("idempotency-key")
            .iter()
            .map(hyper::header::HeaderValue::as_bytes)
            .collect();
        let plain = self.style.is_plain();
        let optional = plain || self.style == ApiStyle::Optional;
        let malformed = || match self.defect {
            Defect::IgnoresMalformed => Ok(None),
            _ => Err(refused(400, "malformed")),
        };
        let line = match lines[..] {
            [] if matches!(self.defect, Defect::SharesNoKey | Defect::SharesEmpty) => {
                return Ok(Some(String::new()));
            }
            [] if optional && !matches!(self.defect, Defect::TurnsAway(_)) => return Ok(None),
            [] => return Err(refused(400, "missing")),
            [line] => line,
            [..] => return malformed(),
        };
        let text = std::str::from_utf8(line)
            .ok()
            .filter(|text| text.is_ascii());
        let key = match text {
            Some(text) if matches!(self.style, ApiStyle::Opaque | ApiStyle::Unique) => Some(text),
            Some(text) if plain => Some(text).filter(|text| !text.contains('"')),
            Some(text) if self.style == ApiStyle::Lenient && !text.contains('"') => Some(text),
            Some(text) => text
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"')),
            None => None,
        };
        match key {
            Some(key)
                if key.trim().is_empty()
                    && matches!(self.defect, Defect::SharesEmpty | Defect::SharesBlank) =>
            {
                Ok(Some(String::new()))
            }
            Some(key) if key.trim().is_empty() => malformed(),
            Some(key) if key.len() > LONGEST_KEY => match self.defect {
                Defect::IgnoresOversized => Ok(None),
                Defect::CutsKeys => Ok(Some(key[..LONGEST_KEY].to_owned())),
                _ => Err(refused(400, "too long")),
            },
            Some(key) => Ok(Some(key.to_owned())),
            None => malformed(),
        }
    }

    fn reserve(&self, headers: &HeaderMap, key: &str, body: &Bytes) -> Decision {
        let tenant = match headers.get("authorization") {
            Some(value) if !matches!(self.defect, Defect::NoTenant | Defect::TurnsAway(_)) => {
                value.to_str().unwrap_or_default()
            }
            _ => "",
        };
        let text = String::from_utf8_lossy(body);
        let canonical = || serde_json::from_slice::<Value>(body).map(|value| value.to_string());
        let fingerprint = match self.defect {
            Defect::ForgetsBody | Defect::SharesNoKey => String::new(),
            Defect::SharesBlank if key.is_empty() => String::new(),
            _ if self.style.is_plain() => text.clone().into_owned(),
            _ => canonical().unwrap_or_else(|_| text.clone().into_owned()),
        };
        let identity = match self.defect {
            Defect::KeyWithBody => format!("{tenant}\n{key}\n{text}"),
            _ => format!("{tenant}\n{key}"),
        };
        let mut ledger = self.ledger();
        if let Some(record) = ledger.records.get_mut(&identity) {
            if record.fingerprint != fingerprint {
                let status = match (self.defect, self.style) {
                    (Defect::MisuseIs(status), _) => status,
                    (_, ApiStyle::Mute) => 422,
                    (_, style) if style.is_plain() => 400,
                    _ => 422,
                };
                return Decision::Answer(refused(status, "reused"), false);
            }
            match &record.state {
                State::Done(_) if self.defect == Defect::BreaksOnce && !record.broke => {
                    record.broke = true;
                    return Decision::Break(identity);
                }
                State::Done(reply) => {
                    let mut reply = reply.clone();
                    if self.defect == Defect::ReplaysAs200 && reply.status == 201 {
                        reply.status = 200;
                    }
                    return Decision::Answer(reply, true);
                }
                State::Running(since)
                    if self.defect == Defect::ReleasesAfterLease && since.elapsed() > LEASE => {}
                State::Running(_) if self.style == ApiStyle::Accepts => {
                    return Decision::Answer(refused(202, "accepted"), false);
                }
                State::Running(_) => {
                    let status = match self.defect {
                        Defect::RunningIs(status) => status,
                        _ => 409,
                    };
                    return Decision::Answer(refused(status, "in_progress"), false);
                }
                State::Unknown => return Decision::Answer(refused(409, "unknown"), false),
                State::NotStored => return Decision::Answer(refused(410, "not_stored"), false),
            }
        }
        if !matches!(self.defect, Defect::NoReservation | Defect::ConflictsLate) {
            let state = State::Running(Instant::now());
            ledger
                .records
                .insert(identity.clone(), Record::new(fingerprint, state));
            return Decision::Execute(Some(identity));
        }
        drop(ledger);
        Decision::Execute(Some(format!("{identity}\0{fingerprint}")))
    }

    async fn execute(
        self: &Arc<Self>,
        headers: &HeaderMap,
        identity: Option<String>,
        body: Bytes,
    ) -> StoredResponse {
        let work = Work::new(headers, &body, identity);
        let api = self.clone();
        let mut guard = Frees(api.clone(), None, api.ledger().crashes);
        let frees = match self.defect {
            Defect::FreesOnDisconnect => true,
            Defect::FreesAndWorksOn => !work.case.is_empty(),
            _ => false,
        };
        if frees {
            guard.1.clone_from(&work.identity);
        }
        if self.defect == Defect::FreesOnDisconnect {
            let reply = api.work(work).await;
            guard.1 = None;
            return reply;
        }
        let work = tokio::spawn(async move { api.work(work).await });
        self.ledger().running.push(work.abort_handle());
        let reply = work.await.unwrap_or_else(|_| refused(500, "died"));
        guard.1 = None;
        reply
    }

    async fn work(self: &Arc<Self>, work: Work) -> StoredResponse {
        // sleeps because work takes time; the clock is paused and costs nothing.
        let pause = |ms| sleep(Duration::from_millis(ms));
        let case = work.case.as_str();
        if self.style == ApiStyle::Later && matches!(case, "" | "slow") {
            pause(5).await;
            return self.accept(&work);
        }
        pause(match case {
            "slow" => 10_000,
            "slowing" if !self.has_slowed() => 10_000,
            "slowing" | "slower" | "never" => 60_000,
            _ => 5,
        })
        .await;
        if self.style == ApiStyle::Unique && self.is_known(&work.reference) {
            return self.complete(&work, refused(422, "reference used"));
        }
        let number = match case {
            "declined" | "early_timeout" | "conflict" => self.execution(),
            _ => self.happen(&work),
        };
        pause(if case == "linger" { 5000 } else { 5 }).await;
        // As unlike as two requests are, and as alike as two executions of one.
        let id = match self.style {
            ApiStyle::Mute => work.reference.chars().rev().collect(),
            _ => number.to_string(),
        };
        let filler = "x".repeat(if case == "large" { LARGEST } else { 0 });
        let reply = |status: u16| StoredResponse {
            status,
            body: json!({"id": id, "reference": work.reference, "filler": filler})
                .to_string()
                .into(),
            location: None,
        };
        let reply = match case {
            "timeout" | "early_timeout" => refused(504, "timeout"),
            "conflict" => refused(409, "conflict"),
            "declined" => reply(402),
            _ => reply(201),
        };
        self.complete(&work, reply)
    }

    /// Takes it on, to be done later.
    fn accept(self: &Arc<Self>, work: &Work) -> StoredResponse {
        let number = self.execution();
        let reply = StoredResponse {
            status: 202,
            body: json!({"state": "accepted"}).to_string().into(),
            location: Some(format!("/operations/{number}")),
        };
        let (api, work_later) = (self.clone(), work.clone());
        let later = tokio::spawn(async move {
            let slow = work_later.case == "slow";
            // sleeps because work takes time; the clock is paused and costs nothing.
            sleep(if slow { LATER * 10 } else { LATER }).await;
            api.happen(&work_later);
        });
        self.ledger().running.push(later.abort_handle());
        self.complete(work, reply)
    }

    /// Whether this was asked before.
    fn has_slowed(&self) -> bool {
        std::mem::replace(&mut self.ledger().slowed, true)
    }

    fn execution(&self) -> usize {
        let mut ledger = self.ledger();
        ledger.executions += 1;
        ledger.executions
    }

    fn is_known(&self, reference: &str) -> bool {
        self.ledger()
            .effects
            .iter()
            .any(|effect| effect.reference == reference)
    }

    fn happen(&self, work: &Work) -> usize {
        let identity = work.identity.as_deref().unwrap_or_default();
        let key = identity.split(['\n', '\0']).nth(1).unwrap_or_default();
        self.ledger().effects.push(Effect {
            reference: work.reference.clone(),
            key: key.to_owned(),
            at: Instant::now(),
        });
        self.execution()
    }

    fn complete(&self, work: &Work, reply: StoredResponse) -> StoredResponse {
        let Some(identity) = &work.identity else {
            return reply;
        };
        let mut ledger = self.ledger();
        // Only where nothing was reserved does the identity carry it.
        let (identity, late) = match identity.split_once('\0') {
            Some((identity, fingerprint)) => (identity, Some(fingerprint.to_owned())),
            None => (identity.as_str(), None),
        };
        if self.defect == Defect::ConflictsLate && ledger.records.contains_key(identity) {
            return refused(500, "conflict");
        }
        let broken = ledger.broken || work.case == "store_failure";
        if work.case == "acknowledged_failure"
            && let Some(record) = ledger.records.get_mut(identity)
        {
            record.state = State::Unknown;
            return reply;
        }
        let mut stored = reply.clone();
        let (state, answer) = match reply.status {
            _ if broken => (State::Unknown, refused(503, "not_recorded")),
            504 if self.style != ApiStyle::KeepsTimeout => (State::Unknown, reply),
            _ if reply.body.len() <= LARGEST => (State::Done(stored), reply),
            _ if self.defect == Defect::Truncates => {
                stored.body = stored.body.slice(..LARGEST);
                (State::Done(stored), reply)
            }
            _ => (State::NotStored, reply),
        };
        let forgotten = match self.defect {
            Defect::FreesOnStoreFailure => broken,
            Defect::RetriesTimeout => answer.status == 504,
            Defect::RetriesDeclined => answer.status == 402,
            Defect::ForgetsLarge => matches!(state, State::NotStored),
            _ => false,
        };
        if forgotten {
            ledger.records.remove(identity);
        } else if let Some(fingerprint) = late {
            ledger
                .records
                .insert(identity.to_owned(), Record::new(fingerprint, state));
        } else if let Some(record) = ledger.records.get_mut(identity) {
            record.state = state;
        }
        answer
    }
}

/// What is to be done.
#[derive(Clone)]
struct Work {
    case: String,
    reference: String,
    identity: Option<String>,
}

impl Work {
    fn new(headers: &HeaderMap, body: &[u8], identity: Option<String>) -> Self {
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        let case = headers.get("x-case").and_then(|value| value.to_str().ok());
        let text = |name: &str| asked[name].as_str().unwrap_or_default().to_owned();
        Self {
            case: case.map_or_else(|| text("case"), ToOwned::to_owned),
            reference: text("merchant_reference"),
            identity,
        }
    }
}

/// A request that is over, which the limiter counts.
struct Leaves(Arc<Api>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.ledger().in_flight -= 1;
    }
}

/// A common convenience in servers: a guard that frees the key when it is dropped.
/// A killed process runs no guards; the guard compares the number of crashes.
struct Frees(Arc<Api>, Option<String>, usize);

impl Drop for Frees {
    fn drop(&mut self) {
        if let Some(identity) = &self.1
            && self.0.ledger().crashes == self.2
        {
            self.0.ledger().records.remove(identity);
        }
    }
}

fn refused(status: u16, code: &str) -> StoredResponse {
    let body = json!({"code": code, "retryable": code != "unknown"})
        .to_string()
        .into();
    StoredResponse {
        status,
        body,
        location: None,
    }
}

fn unknown(reply: &StoredResponse) -> bool {
    reply.body.windows(7).any(|part| part == b"unknown")
}
