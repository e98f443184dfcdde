//! What the network in front of the application sees go by: who is executed, and as which attempt.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use semel_campaign_checker::history::Execution;

use crate::record::Recorder;

/// A head that is longer is none of ours.
const MAX_HEAD: usize = 16 * 1024;
const MAX_HEADERS: usize = 64;
/// One execution in so many is kept, to be asked about at the end.
const KEPT_ONE_IN: u64 = 64;

/// Writes down every request that the application is about to be given. It is the only one that
/// sees an execution that leaves no charge behind, or whose charge the provider recognised.
#[derive(Debug, Default)]
pub(crate) struct Witness {
    recorder: OnceLock<Recorder>,
    kept: Mutex<(u64, Vec<Execution>)>,
}

impl Witness {
    /// From now on what is seen is written down.
    pub(crate) fn begin(&self, recorder: Recorder) {
        // The first one stays; there is one run in a process.
        let _ = self.recorder.set(recorder);
    }

    /// Some of what was seen.
    pub(crate) fn some(&self) -> Vec<Execution> {
        self.kept().1.clone()
    }

    fn see(&self, seen: Seen) {
        let Some(recorder) = self.recorder.get() else {
            return;
        };
        let execution = Execution {
            at_ms: recorder.now_ms(),
            tenant: seen.tenant,
            key: seen.key,
            id: seen.id,
            attempt: seen.attempt,
        };
        let mut kept = self.kept();
        kept.0 += 1;
        if kept.0.is_multiple_of(KEPT_ONE_IN) {
            kept.1.push(execution.clone());
        }
        drop(kept);
        recorder.execution(execution);
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, (u64, Vec<Execution>)> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection, as far as it was read. A gateway has one request at a time under way on it.
#[derive(Debug)]
pub(crate) struct Reading {
    witness: Arc<Witness>,
    /// The head of the next request, until it is whole.
    head: Vec<u8>,
    /// Whether the head of the request under way was whole: what follows is its body.
    past_head: bool,
}

impl Reading {
    pub(crate) fn new(witness: Arc<Witness>) -> Self {
        Self {
            witness,
            head: Vec::new(),
            past_head: false,
        }
    }

    /// These bytes are about to be given to the application.
    pub(crate) fn asked(&mut self, bytes: &[u8]) {
        if self.past_head {
            return;
        }
        self.head.extend_from_slice(bytes);
        match read(&self.head) {
            Read::Part if self.head.len() < MAX_HEAD => {}
            Read::Part | Read::Nothing => self.past_head = true,
            Read::Guarded(seen) => {
                self.past_head = true;
                self.witness.see(seen);
            }
        }
    }

    /// The application has begun to answer: what comes next is another request.
    pub(crate) fn answered(&mut self) {
        self.head.clear();
        self.past_head = false;
    }
}

/// What a request says of itself.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    tenant: String,
    key: String,
    id: String,
    attempt: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Read {
    /// Not whole yet.
    Part,
    /// Nothing that is guarded: a poll, or no request at all.
    Nothing,
    Guarded(Seen),
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
        Some(Seen {
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
            let mut reading = Reading::new(Arc::clone(&witness));
            for request in [REQUEST, POLL, REQUEST] {
                for piece in request.as_bytes().chunks(length) {
                    reading.asked(piece);
                }
                reading.answered();
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
