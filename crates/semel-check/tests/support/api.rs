//! The API itself.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{HeaderMap, Request, Response};
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};

/// What is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hole {
    /// Nothing.
    None,
    /// Looks a key up, works, and stores it afterwards.
    NoReservation,
    /// Compares no bodies.
    ForgetsBody,
    /// The body is part of the key.
    KeyWithBody,
    /// Frees the key of a client that went away.
    FreesOnDisconnect,
    /// Frees the key of an operation that takes long.
    ReleasesAfterLease,
    /// Stores the beginning of a large answer.
    Truncates,
    /// Forgets an answer that is too large to store.
    ForgetsLarge,
    /// Takes a 504 for "nothing happened".
    RetriesTimeout,
    /// Takes a decline for "nothing happened".
    RetriesDeclined,
    /// Keeps its keys in memory.
    CrashForgets,
    /// Frees the key of an operation that it could not record.
    FreesOnStoreFailure,
    /// Everybody's keys are one set.
    NoTenant,
    /// Treats a key that it cannot read as none.
    IgnoresMalformed,
    /// Treats a key that is too long as none.
    IgnoresOversized,
    /// Takes as much of a key as it has room for.
    CutsKeys,
    /// Treats no key as the same key.
    SharesNoKey,
    /// Replays with status 200.
    ReplaysAs200,
}

/// How it is correct. APIs differ, and all of these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// As the draft has it.
    Draft,
    /// A duplicate waits for the first.
    Waits,
    /// A duplicate is accepted, and is to come back.
    Accepts,
    /// Unquoted keys, other statuses, no mark on a replay, keys optional, bodies compared raw.
    Plain,
    /// As `Plain`, and every execution is answered alike.
    Mute,
}

const LEASE: Duration = Duration::from_secs(2);
const LONGEST_KEY: usize = 255;
const LARGEST: usize = 1 << 20;

#[derive(Clone)]
struct Said {
    status: u16,
    body: Bytes,
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
}

#[derive(Default)]
struct Books {
    records: HashMap<String, Record>,
    effects: Vec<String>,
    running: Vec<AbortHandle>,
    executions: usize,
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

    pub(crate) fn effects(&self, reference: &str) -> usize {
        self.books()
            .effects
            .iter()
            .filter(|one| *one == reference)
            .count()
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
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let headers = request.headers().clone();
        // A body that breaks off is no request.
        let body = request
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes);
        let (said, replayed) = match body {
            Ok(body) => self.decide(&headers, body).await,
            Err(_) => (refused(400, "broken"), false),
        };
        let mut response = Response::builder()
            .status(said.status)
            .header("content-type", "application/json");
        if said.status == 409 || said.status == 202 {
            response = response.header("retry-after", "1");
        }
        if replayed && !matches!(self.manner, Manner::Plain | Manner::Mute) {
            response = response.header("idempotent-replayed", "true");
        }
        Ok(response.body(Full::new(said.body)).unwrap())
    }

    async fn decide(self: &Arc<Self>, headers: &HeaderMap, body: Bytes) -> (Said, bool) {
        let key = match self.key(headers) {
            Ok(key) => key,
            Err(said) => return (said, false),
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
            Decision::Answer(said, replayed) => (said, replayed),
            Decision::Execute(identity) => (self.execute(headers, identity, body).await, false),
        }
    }

    /// The key, none where it is not needed, or why it is refused.
    fn key(&self, headers: &HeaderMap) -> Result<Option<String>, Said> {
        let lines: Vec<&[u8]> = headers
            .get_all("idempotency-key")
            .iter()
            .map(hyper::header::HeaderValue::as_bytes)
            .collect();
        let plain = matches!(self.manner, Manner::Plain | Manner::Mute);
        let malformed = || match self.hole {
            Hole::IgnoresMalformed => Ok(None),
            _ => Err(refused(400, "malformed")),
        };
        let line = match lines[..] {
            [] if self.hole == Hole::SharesNoKey => return Ok(Some(String::new())),
            [] if plain => return Ok(None),
            [] => return Err(refused(400, "missing")),
            [line] => line,
            [..] => return malformed(),
        };
        let text = std::str::from_utf8(line)
            .ok()
            .filter(|text| text.is_ascii());
        let key = match text {
            Some(text) if plain => Some(text).filter(|text| !text.contains('"')),
            Some(text) => text
                .strip_prefix('"')
                .and_then(|text| text.strip_suffix('"')),
            None => None,
        };
        match key {
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
            Some(value) if self.hole != Hole::NoTenant => value.to_str().unwrap_or_default(),
            _ => "",
        };
        let text = String::from_utf8_lossy(body);
        let canonical = || serde_json::from_slice::<Value>(body).map(|value| value.to_string());
        let fingerprint = match self.hole {
            Hole::ForgetsBody | Hole::SharesNoKey => String::new(),
            _ if matches!(self.manner, Manner::Plain | Manner::Mute) => text.clone().into_owned(),
            _ => canonical().unwrap_or_else(|_| text.clone().into_owned()),
        };
        let identity = match self.hole {
            Hole::KeyWithBody => format!("{tenant}\n{key}\n{text}"),
            _ => format!("{tenant}\n{key}"),
        };
        let mut books = self.books();
        if let Some(record) = books.records.get(&identity) {
            if record.fingerprint != fingerprint {
                let status = if self.manner == Manner::Plain {
                    400
                } else {
                    422
                };
                return Decision::Answer(refused(status, "reused"), false);
            }
            match &record.state {
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
                State::Running(_) => return Decision::Answer(refused(409, "in_progress"), false),
                State::Unknown => return Decision::Answer(refused(409, "unknown"), false),
                State::NotStored => return Decision::Answer(refused(410, "not_stored"), false),
            }
        }
        if self.hole != Hole::NoReservation {
            let state = State::Running(Instant::now());
            books
                .records
                .insert(identity.clone(), Record { fingerprint, state });
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
        let case = headers.get("x-case").and_then(|value| value.to_str().ok());
        let case = case.unwrap_or_default().to_owned();
        let api = self.clone();
        if self.hole == Hole::FreesOnDisconnect {
            let mut guard = Frees(api.clone(), identity.clone(), api.books().crashes);
            let said = api.work(&case, identity, &body).await;
            guard.1 = None;
            return said;
        }
        let work = tokio::spawn(async move { api.work(&case, identity, &body).await });
        self.books().running.push(work.abort_handle());
        work.await.unwrap_or_else(|_| refused(500, "died"))
    }

    async fn work(&self, case: &str, identity: Option<String>, body: &[u8]) -> Said {
        // sleeps because work takes time; the clock is paused and costs nothing.
        let pause = |ms| sleep(Duration::from_millis(ms));
        pause(if case == "slow" { 10_000 } else { 5 }).await;
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let reference = request["merchant_reference"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let number = {
            let mut books = self.books();
            books.executions += 1;
            if case != "declined" {
                books.effects.push(reference.clone());
            }
            books.executions
        };
        pause(if case == "linger" { 5000 } else { 5 }).await;
        let id = if self.manner == Manner::Mute {
            0
        } else {
            number
        };
        let filler = "x".repeat(if case == "large" { LARGEST } else { 0 });
        let said = |status: u16| Said {
            status,
            body: json!({"id": id, "reference": reference, "filler": filler})
                .to_string()
                .into(),
        };
        let said = match case {
            "timeout" => refused(504, "timeout"),
            "declined" => said(402),
            _ => said(201),
        };
        match identity {
            Some(identity) => self.complete(&identity, said),
            None => said,
        }
    }

    fn complete(&self, identity: &str, said: Said) -> Said {
        let mut books = self.books();
        // Only where nothing was reserved does the identity carry it.
        let (identity, late) = match identity.split_once('\0') {
            Some((identity, fingerprint)) => (identity, Some(fingerprint.to_owned())),
            None => (identity, None),
        };
        let mut stored = said.clone();
        let (state, answer) = match said.status {
            _ if books.broken => (State::Unknown, refused(503, "not_recorded")),
            504 => (State::Unknown, said),
            _ if said.body.len() <= LARGEST => (State::Done(stored), said),
            _ if self.hole == Hole::Truncates => {
                stored.body = stored.body.slice(..LARGEST);
                (State::Done(stored), said)
            }
            _ => (State::NotStored, said),
        };
        let forgotten = match self.hole {
            Hole::FreesOnStoreFailure => books.broken,
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
                .insert(identity.to_owned(), Record { fingerprint, state });
        } else if let Some(record) = books.records.get_mut(identity) {
            record.state = state;
        }
        answer
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
    Said { status, body }
}

fn unknown(said: &Said) -> bool {
    said.body.windows(7).any(|part| part == b"unknown")
}
