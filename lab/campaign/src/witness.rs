//! Records which operations reach the application, and as which attempt.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use semel_campaign_checker::history::Execution;

use crate::hostile::ATTACKER;
use crate::record::Recorder;

/// Longer heads are not from the campaign.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
/// One execution in so many is sampled; its status is read at the end.
const SAMPLE_ONE_IN: u64 = 64;

/// Records every request to the application. Only it sees an execution without a charge, or whose
/// charge the provider recognised by its key.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    recorder: OnceLock<Recorder>,
    kept: Mutex<(u64, Vec<Execution>)>,
}

impl Witness {
    /// Starts recording.
    pub(crate) fn begin(&self, recorder: Recorder) {
        // Set once: there is one run per process.
        let _ = self.recorder.set(recorder);
    }

    /// A sample of the executions.
    pub(crate) fn sample(&self) -> Vec<Execution> {
        self.kept().1.clone()
    }

    fn record(&self, seen: GuardedRequest) {
        let Some(recorder) = self.recorder.get() else {
            return;
        };
        // Not a client: the application refuses what it sends.
        if seen.tenant == ATTACKER {
            return;
        }
        let execution = Execution {
            at_ms: recorder.now_ms(),
            tenant: seen.tenant,
            key: seen.key,
            id: seen.id,
            attempt: seen.attempt,
        };
        let mut kept = self.kept();
        kept.0 += 1;
        if kept.0.is_multiple_of(SAMPLE_ONE_IN) {
            kept.1.push(execution.clone());
        }
        drop(kept);
        recorder.execution(execution);
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, (u64, Vec<Execution>)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads the requests of one connection. A gateway sends one request at a time over it.
#[derive(Debug)]
pub(crate) struct RequestReader {
    witness: Arc<Witness>,
    /// The head of the next request, until it is complete.
    head: Vec<u8>,
    /// Whether the head of the current request is complete: the rest is its body.
    past_head: bool,
}

impl RequestReader {
    pub(crate) fn new(witness: Arc<Witness>) -> Self {
        Self {
            witness,
            head: Vec::new(),
            past_head: false,
        }
    }

    /// Reads bytes that are about to be sent to the application.
    pub(crate) fn read_request(&mut self, bytes: &[u8]) {
        if self.past_head {
            return;
        }
        self.head.extend_from_slice(bytes);
        match read(&self.head) {
            Read::Part if self.head.len() < MAX_HEAD => {}
            Read::Part | Read::Nothing => self.past_head = true,
            Read::Guarded(seen) => {
                self.past_head = true;
                self.witness.record(seen);
            }
        }
    }

    /// The application started to answer: the next bytes are a new request.
    pub(crate) fn response_started(&mut self) {
        self.head.clear();
        self.past_head = false;
    }
}

/// The headers of a guarded request.
#[derive(Debug, PartialEq, Eq)]
struct GuardedRequest {
    tenant: String,
    key: String,
    id: String,
    attempt: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// Not complete yet.
    Part,
    /// Not a guarded request: a poll, or not HTTP.
    Nothing,
    Guarded(GuardedRequest),
}

fn read(head: &[u8]) -> Read {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return Read::Part,
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Read::Nothing,
    }
    let text = |name: &str| {
        let mut lines = request.headers.iter();
        let line = lines.find(|header| header.name.eq_ignore_ascii_case(name))?;
        std::str::from_utf8(line.value).ok()
    };
    let seen = (|| {
        Some(GuardedRequest {
            tenant: text("authorization")?.strip_prefix("Bearer ")?.to_owned(),
            key: text("idempotency-key")?.trim_matches('"').to_owned(),
            id: text("semel-operation-id")?.to_owned(),
            attempt: text("semel-attempt")?.parse().ok()?,
        })
    })();
    seen.map_or(Read::Nothing, Read::Guarded)
}

#[cfg(test)]
mod tests {
    use semel_campaign_checker::history::Run;

    use super::*;

    const REQUEST: &str = "POST /payments HTTP/1.1\r\nAuthorization: Bearer tenant-3\r\n\
         Idempotency-Key: \"k-1\"\r\nSemel-Operation-Id: o-1\r\nSemel-Attempt: 2\r\n\
         Content-Length: 5\r\n\r\nhello";
    const POLL: &str = "GET /payments/by-operation/o-1 HTTP/1.1\r\nHost: a\r\n\r\n";

    #[test]
    fn an_execution_is_seen_in_any_pieces_and_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.jsonl");
        let run = Run {
            seed: 1,
            short: true,
            all_replayed: false,
        };
        let (recorder, writing) = Recorder::create(&path, run).unwrap();
        let witness = Arc::new(Witness::default());
        witness.begin(recorder);
        for length in [1, 7, REQUEST.len()] {
            let mut reading = RequestReader::new(Arc::clone(&witness));
            for request in [REQUEST, POLL, REQUEST] {
                for piece in request.as_bytes().chunks(length) {
                    reading.read_request(piece);
                }
                reading.response_started();
            }
        }
        drop(witness);
        writing.finish().unwrap();
        let history = std::fs::read_to_string(&path).unwrap();
        let seen: Vec<&str> = history
            .lines()
            .filter(|line| line.contains("\"kind\":\"execution\""))
            .collect();
        assert_eq!(seen.len(), 6, "{history}");
        for line in seen {
            for part in ["\"tenant-3\"", "\"k-1\"", "\"o-1\"", "\"attempt\":2"] {
                assert!(line.contains(part), "{line}");
            }
        }
    }
}
