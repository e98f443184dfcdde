//! Writes the history of a run while it runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use semel_campaign_checker::history::{
    Call, Decision, Execution, Fault, Leftover, Line, Operation, Outcome, Peek, Run,
};
use tokio::time::Instant;

/// The error code of a gateway whose store does not answer.
const STORE_AWAY: &str = "idempotency_store_unavailable";

/// The history of a run. Clones write the same one.
#[derive(Clone, Debug)]
pub(crate) struct Recorder {
    began: Instant,
    lines: Sender<Line>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    phase: Mutex<String>,
    calls: AtomicU64,
    answered: AtomicU64,
    /// The number of answers with that code.
    store_errors: AtomicU64,
    faults: Mutex<BTreeMap<String, u64>>,
}

/// The thread that writes.
#[derive(Debug)]
pub(crate) struct Writing(JoinHandle<std::io::Result<()>>);

impl Recorder {
    pub(crate) fn create(path: &Path, run: Run) -> Result<(Self, Writing)> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let (lines, written) = channel();
        let thread = std::thread::spawn(move || {
            let mut file = BufWriter::with_capacity(1 << 20, file);
            for line in written {
                serde_json::to_writer(&mut file, &line)?;
                file.write_all(b"\n")?;
            }
            file.flush()
        });
        let recorder = Self {
            began: Instant::now(),
            lines,
            shared: Arc::default(),
        };
        recorder.write(Line::Run(run));
        Ok((recorder, Writing(thread)))
    }

    /// Milliseconds since the run began.
    pub(crate) fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub(crate) fn enter(&self, phase: &str) {
        phase.clone_into(&mut lock(&self.shared.phase));
    }

    pub(crate) fn phase(&self) -> String {
        lock(&self.shared.phase).clone()
    }

    pub(crate) fn operation(&self, operation: Operation) {
        self.write(Line::Operation(operation));
    }

    pub(crate) fn call(&self, call: Call) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
        if call.outcome == Outcome::Ok {
            self.shared.answered.fetch_add(1, Ordering::Relaxed);
        }
        if call.code.as_deref() == Some(STORE_AWAY) {
            self.shared.store_errors.fetch_add(1, Ordering::Relaxed);
        }
        self.write(Line::Call(call));
    }

    pub(crate) fn fault(&self, name: &str, target: impl Into<String>) {
        *lock(&self.shared.faults)
            .entry(name.to_owned())
            .or_default() += 1;
        self.write(Line::Fault(Fault {
            at_ms: self.now_ms(),
            phase: self.phase(),
            name: name.to_owned(),
            target: target.into(),
        }));
    }

    pub(crate) fn execution(&self, execution: Execution) {
        self.write(Line::Execution(execution));
    }

    pub(crate) fn peek(&self, peek: Peek) {
        self.write(Line::Peek(peek));
    }

    pub(crate) fn decision(&self, id: &str, verdict: &str, route: &str) {
        self.write(Line::Decision(Decision {
            id: id.to_owned(),
            verdict: verdict.to_owned(),
            route: route.to_owned(),
        }));
    }

    pub(crate) fn leftover(&self, id: &str, status: &str) {
        self.write(Line::Leftover(Leftover {
            id: id.to_owned(),
            status: status.to_owned(),
        }));
    }

    /// The number of calls, and of those with a final answer.
    pub(crate) fn calls(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.shared.calls), read(&self.shared.answered))
    }

    /// The number of answers with that code.
    pub(crate) fn store_errors(&self) -> u64 {
        self.shared.store_errors.load(Ordering::Relaxed)
    }

    /// The number of each fault so far.
    pub(crate) fn faults(&self) -> BTreeMap<String, u64> {
        lock(&self.shared.faults).clone()
    }

    fn write(&self, line: Line) {
        // The thread ends early only after an I/O error, which `finish` returns.
        let _ = self.lines.send(line);
    }
}

impl Writing {
    /// Waits until everything is in the file. All recorders must be dropped before.
    pub(crate) fn finish(self) -> Result<()> {
        let ended = self.0.join();
        let written = ended.map_err(|_| anyhow::anyhow!("the history's writer panicked"))?;
        written.context("the history could not be written")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
