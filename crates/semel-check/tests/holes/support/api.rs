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

use super::hole::{Hole, Manner};

const LEASE: Duration = Duration::from_secs(2);
const LONGEST_KEY: usize = 255;
const LARGEST: usize = 1 << 20;
/// What was accepted is done so much later.
const LATER: Duration = Duration::from_secs(1);

#[derive(Clone)]
struct Said {
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
    Done(Said),
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
struct Books {
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
    hole: Hole,
    manner: Manner,
    books: Mutex<Books>,
}

/// What a request comes to before anything is executed.
enum Decision {
    Answer(Said, bool),
    Execute(Option<String>),
    /// Executed, and nothing comes of it but an error.
    Break(String),
}

impl Api {
    pub(crate) fn new(hole: Hole, manner: Manner) -> Self {
        Self {
            hole,
            manner,
            books: Mutex::default(),
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many effects a counter of this kind shows that is so far behind.
    pub(crate) fn effects(&self, kind: &str, name: &str, lag: Duration) -> usize {
        let books = self.books();
        let shown = books.effects.iter().filter(|one| one.at.elapsed() >= lag);
        let counted = shown.filter(|one| match kind {
            "count" => one.reference == name,
            "count-key" => one.key == name,
            _ => true,
        });
        counted.count()
    }

    pub(crate) fn all_effects(&self) -> usize {
        self.books().effects.len()
    }

    pub(crate) fn break_store(&self, broken: bool) {
        self.books().broken = broken;
    }

    /// Everything that runs ends; what was on the disk is still there.
    pub(crate) fn crash(&self) {
        let mut books = self.books();
        books.crashes += 1;
        for task in books.running.drain(..) {
            task.abort();
        }
        if self.hole == Hole::CrashForgets {
            books.records.clear();
        }
        for record in books.records.values_mut() {
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
        let (said, replayed) = match body {
            Ok(body) => self.limited(&headers, body).await,
            Err(_) => (refused(400, "broken"), false),
        };
        if said.status == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let mut response = Response::builder()
            .status(said.status)
            .header("content-type", "application/json");
        if said.status == 409 || said.status == 202 {
            response = response.header("retry-after", "1");
        }
        if let Some(location) = said.location {
            response = response.header("location", location);
        }
        if replayed && !self.manner.is_plain() {
            response = response.header("idempotent-replayed", "true");
        }
        Ok(response.body(Full::new(said.body)).unwrap())
    }

    async fn limited(self: &Arc<Self>, headers: &HeaderMap, body: Bytes) -> (Said, bool) {
        if self.hole == Hole::Limits && self.books().in_flight > 0 {
            return (refused(429, "limited"), false);
        }
        self.books().in_flight += 1;
        let _leaves = Leaves(self.clone());
        self.decide(headers, body).await
    }

    async fn decide(self: &Arc<Self>, headers: &HeaderMap, body: Bytes) -> (Said, bool) {
        let key = match self.key(headers) {
            Ok(key) => key,
            Err(said) => return self.or_turned_away(said, false),
        };
        let decision = match key {
            Some(key) => loop {
                let decision = self.reserve(headers, &key, &body);
                let Decision::Answer(said, _) = &decision else {
                    break decision;
                };
                if self.manner != Manner::Waits || said.status != 409 || unknown(said) {
                    break decision;
                }
                // sleeps because a duplicate waits; the clock is paused and costs nothing.
                sleep(Duration::from_millis(50)).await;
            },
            None => Decision::Execute(None),
        };
        match decision {
            Decision::Answer(said, replayed) => self.or_turned_away(said, replayed),
            Decision::Execute(identity) => (self.execute(headers, identity, body).await, false),
            Decision::Break(identity) => {
                self.happen(&Work::new(headers, &body, Some(identity)));
                (refused(500, "broke"), false)
            }
        }
    }

    fn or_turned_away(&self, said: Said, replayed: bool) -> (Said, bool) {
        match self.hole {
            Hole::TurnsAway(status) => (refused(status, "turned away"), false),
            _ => (said, replayed),
        }
    }

    /// The key, none where it is not needed, or why it is refused.
    fn key(&self, headers: &HeaderMap) -> Result<Option<String>, Said> {
        let lines: Vec<&[u8]> = headers
            .get_all("idempotency-key")
            .iter()
            .map(hyper::header::HeaderValue::as_bytes)
            .collect();
        let plain = self.manner.is_plain();
        let optional = plain || self.manner == Manner::Optional;
        let malformed = || match self.hole {
            Hole::IgnoresMalformed => Ok(None),
            _ => Err(refused(400, "malformed")),
        };
        let line = match lines[..] {
            [] if matches!(self.hole, Hole::SharesNoKey | Hole::SharesEmpty) => {
                return Ok(Some(String::new()));
            }
            [] if optional && !matches!(self.hole, Hole::TurnsAway(_)) => return Ok(None),
            [] => return Err(refused(400, "missing")),
            [line] => line,
            [..] => return malformed(),
        };
        let text = std::str::from_utf8(line)
            .ok()
            .filter(|text| text.is_ascii());
        let key = match text {
            Some(text) if matches!(self.manner, Manner::Opaque | Manner::Unique) => Some(text),
            Some(text) if plain => Some(text).filter(|text| !text.contains('"')),
            Some(text) if self.manner == Manner::Lenient && !text.contains('"') => Some(text),
            Some(text) => text
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"')),
            None => None,
        };
        match key {
            Some(key)
                if key.trim().is_empty()
                    && matches!(self.hole, Hole::SharesEmpty | Hole::SharesBlank) =>
            {
                Ok(Some(String::new()))
            }
            Some(key) if key.trim().is_empty() => malformed(),
            Some(key) if key.len() > LONGEST_KEY => match self.hole {
                Hole::IgnoresOversized => Ok(None),
                Hole::CutsKeys => Ok(Some(key[..LONGEST_KEY].to_owned())),
                _ => Err(refused(400, "too long")),
            },
            Some(key) => Ok(Some(key.to_owned())),
            None => malformed(),
        }
    }

    fn reserve(&self, headers: &HeaderMap, key: &str, body: &Bytes) -> Decision {
        let tenant = match headers.get("authorization") {
            Some(value) if !matches!(self.hole, Hole::NoTenant | Hole::TurnsAway(_)) => {
                value.to_str().unwrap_or_default()
            }
            _ => "",
        };
        let text = String::from_utf8_lossy(body);
        let canonical = || serde_json::from_slice::<Value>(body).map(|value| value.to_string());
        let fingerprint = match self.hole {
            Hole::ForgetsBody | Hole::SharesNoKey => String::new(),
            Hole::SharesBlank if key.is_empty() => String::new(),
            _ if self.manner.is_plain() => text.clone().into_owned(),
            _ => canonical().unwrap_or_else(|_| text.clone().into_owned()),
        };
        let identity = match self.hole {
            Hole::KeyWithBody => format!("{tenant}\n{key}\n{text}"),
            _ => format!("{tenant}\n{key}"),
        };
        let mut books = self.books();
        if let Some(record) = books.records.get_mut(&identity) {
            if record.fingerprint != fingerprint {
                let status = match (self.hole, self.manner) {
                    (Hole::MisuseIs(status), _) => status,
                    (_, Manner::Mute) => 422,
                    (_, manner) if manner.is_plain() => 400,
                    _ => 422,
                };
                return Decision::Answer(refused(status, "reused"), false);
            }
            match &record.state {
                State::Done(_) if self.hole == Hole::BreaksOnce && !record.broke => {
                    record.broke = true;
                    return Decision::Break(identity);
                }
                State::Done(said) => {
                    let mut said = said.clone();
                    if self.hole == Hole::ReplaysAs200 && said.status == 201 {
                        said.status = 200;
                    }
                    return Decision::Answer(said, true);
                }
                State::Running(since)
                    if self.hole == Hole::ReleasesAfterLease && since.elapsed() > LEASE => {}
                State::Running(_) if self.manner == Manner::Accepts => {
                    return Decision::Answer(refused(202, "accepted"), false);
                }
                State::Running(_) => {
                    let status = match self.hole {
                        Hole::RunningIs(status) => status,
                        _ => 409,
                    };
                    return Decision::Answer(refused(status, "in_progress"), false);
                }
                State::Unknown => return Decision::Answer(refused(409, "unknown"), false),
                State::NotStored => return Decision::Answer(refused(410, "not_stored"), false),
            }
        }
        if !matches!(self.hole, Hole::NoReservation | Hole::ConflictsLate) {
            let state = State::Running(Instant::now());
            books
                .records
                .insert(identity.clone(), Record::new(fingerprint, state));
            return Decision::Execute(Some(identity));
        }
        drop(books);
        Decision::Execute(Some(format!("{identity}\0{fingerprint}")))
    }

    async fn execute(
        self: &Arc<Self>,
        headers: &HeaderMap,
        identity: Option<String>,
        body: Bytes,
    ) -> Said {
        let work = Work::new(headers, &body, identity);
        let api = self.clone();
        let mut guard = Frees(api.clone(), None, api.books().crashes);
        let frees = match self.hole {
            Hole::FreesOnDisconnect => true,
            Hole::FreesAndWorksOn => !work.case.is_empty(),
            _ => false,
        };
        if frees {
            guard.1.clone_from(&work.identity);
        }
        if self.hole == Hole::FreesOnDisconnect {
            let said = api.work(work).await;
            guard.1 = None;
            return said;
        }
        let work = tokio::spawn(async move { api.work(work).await });
        self.books().running.push(work.abort_handle());
        let said = work.await.unwrap_or_else(|_| refused(500, "died"));
        guard.1 = None;
        said
    }

    async fn work(self: &Arc<Self>, work: Work) -> Said {
        // sleeps because work takes time; the clock is paused and costs nothing.
        let pause = |ms| sleep(Duration::from_millis(ms));
        let case = work.case.as_str();
        if self.manner == Manner::Later && matches!(case, "" | "slow") {
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
        if self.manner == Manner::Unique && self.is_known(&work.reference) {
            return self.complete(&work, refused(422, "reference used"));
        }
        let number = match case {
            "declined" | "early_timeout" | "conflict" => self.execution(),
            _ => self.happen(&work),
        };
        pause(if case == "linger" { 5000 } else { 5 }).await;
        // As unlike as two requests are, and as alike as two executions of one.
        let id = match self.manner {
            Manner::Mute => work.reference.chars().rev().collect(),
            _ => number.to_string(),
        };
        let filler = "x".repeat(if case == "large" { LARGEST } else { 0 });
        let said = |status: u16| Said {
            status,
            body: json!({"id": id, "reference": work.reference, "filler": filler})
                .to_string()
                .into(),
            location: None,
        };
        let said = match case {
            "timeout" | "early_timeout" => refused(504, "timeout"),
            "conflict" => refused(409, "conflict"),
            "declined" => said(402),
            _ => said(201),
        };
        self.complete(&work, said)
    }

    /// Takes it on, to be done later.
    fn accept(self: &Arc<Self>, work: &Work) -> Said {
        let number = self.execution();
        let said = Said {
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
        self.books().running.push(later.abort_handle());
        self.complete(work, said)
    }

    /// Whether this was asked before.
    fn has_slowed(&self) -> bool {
        std::mem::replace(&mut self.books().slowed, true)
    }

    fn execution(&self) -> usize {
        let mut books = self.books();
        books.executions += 1;
        books.executions
    }

    fn is_known(&self, reference: &str) -> bool {
        self.books()
            .effects
            .iter()
            .any(|effect| effect.reference == reference)
    }

    fn happen(&self, work: &Work) -> usize {
        let identity = work.identity.as_deref().unwrap_or_default();
        let key = identity.split(['\n', '\0']).nth(1).unwrap_or_default();
        self.books().effects.push(Effect {
            reference: work.reference.clone(),
            key: key.to_owned(),
            at: Instant::now(),
        });
        self.execution()
    }

    fn complete(&self, work: &Work, said: Said) -> Said {
        let Some(identity) = &work.identity else {
            return said;
        };
        let mut books = self.books();
        // Only where nothing was reserved does the identity carry it.
        let (identity, late) = match identity.split_once('\0') {
            Some((identity, fingerprint)) => (identity, Some(fingerprint.to_owned())),
            None => (identity.as_str(), None),
        };
        if self.hole == Hole::ConflictsLate && books.records.contains_key(identity) {
            return refused(500, "conflict");
        }
        let broken = books.broken || work.case == "store_failure";
        if work.case == "told_failure"
            && let Some(record) = books.records.get_mut(identity)
        {
            record.state = State::Unknown;
            return said;
        }
        let mut stored = said.clone();
        let (state, answer) = match said.status {
            _ if broken => (State::Unknown, refused(503, "not_recorded")),
            504 if self.manner != Manner::KeepsTimeout => (State::Unknown, said),
            _ if said.body.len() <= LARGEST => (State::Done(stored), said),
            _ if self.hole == Hole::Truncates => {
                stored.body = stored.body.slice(..LARGEST);
                (State::Done(stored), said)
            }
            _ => (State::NotStored, said),
        };
        let forgotten = match self.hole {
            Hole::FreesOnStoreFailure => broken,
            Hole::RetriesTimeout => answer.status == 504,
            Hole::RetriesDeclined => answer.status == 402,
            Hole::ForgetsLarge => matches!(state, State::NotStored),
            _ => false,
        };
        if forgotten {
            books.records.remove(identity);
        } else if let Some(fingerprint) = late {
            books
                .records
                .insert(identity.to_owned(), Record::new(fingerprint, state));
        } else if let Some(record) = books.records.get_mut(identity) {
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

/// A request that is over, for whoever counts them.
struct Leaves(Arc<Api>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.books().in_flight -= 1;
    }
}

/// What is written for convenience in many servers: a guard that frees the key when it is dropped.
/// A process that is killed runs no guards, which the number of crashes tells.
struct Frees(Arc<Api>, Option<String>, usize);

impl Drop for Frees {
    fn drop(&mut self) {
        if let Some(identity) = &self.1
            && self.0.books().crashes == self.2
        {
            self.0.books().records.remove(identity);
        }
    }
}

fn refused(status: u16, code: &str) -> Said {
    let body = json!({"code": code, "retryable": code != "unknown"})
        .to_string()
        .into();
    Said {
        status,
        body,
        location: None,
    }
}

fn unknown(said: &Said) -> bool {
    said.body.windows(7).any(|part| part == b"unknown")
}
