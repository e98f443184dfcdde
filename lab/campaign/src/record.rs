//! Writes the history of a run while it runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use semel_campaign_checker::history::{
    Call, Decision, Erasure, Execution, Fault, Leftover, Line, Message, Operation, Outcome, Peek,
    Run,
};
use tokio::time::{Instant, sleep};

use crate::cluster::Pause;

/// The interval at which the campaign looks for a success after a fault.
const PAUSE_POLL: Duration = Duration::from_millis(50);
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
    erasures: AtomicU64,
    faults: Mutex<BTreeMap<String, u64>>,
    gaps: Mutex<Gaps>,
    pauses: Mutex<Vec<Pause>>,
}

/// The times without a new execution since [`Recorder::begin_pause`], by gateway and of all of them.
#[derive(Debug, Default)]
struct Gaps {
    /// The gap of a gateway without a success so far.
    fresh: Gap,
    all: Gap,
    by_gateway: BTreeMap<String, Gap>,
}

/// The time of the last success, and the longest time between two.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    last_ms: u64,
    longest_ms: u64,
}

impl Gap {
    fn success_at(&mut self, now_ms: u64) {
        self.longest_ms = self.longest_ms.max(now_ms.saturating_sub(self.last_ms));
        self.last_ms = self.last_ms.max(now_ms);
    }
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
            // A replay may come from a cache, without the store.
            if !call.replayed {
                let mut gaps = lock(&self.shared.gaps);
                gaps.all.success_at(call.ended_ms);
                let fresh = gaps.fresh;
                let own = gaps.by_gateway.entry(call.gateway.clone());
                own.or_insert(fresh).success_at(call.ended_ms);
            }
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

    /// Measures how long nothing succeeds, from now on.
    pub(crate) fn begin_pause(&self) {
        let mut gaps = lock(&self.shared.gaps);
        let fresh = Gap {
            last_ms: self.now_ms(),
            longest_ms: 0,
        };
        (gaps.fresh, gaps.all) = (fresh, fresh);
        for gap in gaps.by_gateway.values_mut() {
            *gap = fresh;
        }
    }

    /// The longest times without a success since [`begin_pause`](Self::begin_pause): of all gateways
    /// together, and of the worst. Waits for a success of each until `ends`.
    pub(crate) async fn end_pause(&self, ends: Instant) -> (u64, u64) {
        let asked_ms = self.now_ms();
        let has_ended = || {
            let gaps = lock(&self.shared.gaps);
            gaps.by_gateway.values().all(|gap| gap.last_ms > asked_ms)
        };
        while !has_ended() && Instant::now() < ends {
            sleep(PAUSE_POLL).await;
        }
        let now_ms = self.now_ms();
        let gaps = lock(&self.shared.gaps);
        let longest = |gap: &Gap| {
            let mut gap = *gap;
            gap.success_at(now_ms);
            gap.longest_ms
        };
        let all = longest(&gaps.all);
        let worst = gaps.by_gateway.values().map(longest).max();
        (all, worst.unwrap_or(all))
    }

    pub(crate) fn pause(&self, pause: Pause) {
        lock(&self.shared.pauses).push(pause);
    }

    pub(crate) fn pauses(&self) -> Vec<Pause> {
        lock(&self.shared.pauses).clone()
    }

    pub(crate) fn execution(&self, execution: Execution) {
        self.write(Line::Execution(execution));
    }

    pub(crate) fn erasure(&self, erasure: Erasure) {
        self.shared.erasures.fetch_add(1, Ordering::Relaxed);
        self.write(Line::Erasure(erasure));
    }

    /// The number of erased responses so far.
    pub(crate) fn erasures(&self) -> u64 {
        self.shared.erasures.load(Ordering::Relaxed)
    }

    pub(crate) fn message(&self, message: Message) {
        self.write(Line::Message(message));
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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use semel_campaign_checker::history::{Sent, Transport};
    use tokio::time::advance;

    use super::*;

    fn success(recorder: &Recorder, gateway: &str, replayed: bool) {
        recorder.call(Call {
            op: 1,
            began_ms: recorder.now_ms(),
            ended_ms: recorder.now_ms(),
            phase: String::new(),
            gateway: gateway.to_owned(),
            transport: Transport::Plain,
            sent: Sent::Same,
            outcome: Outcome::Ok,
            status: Some(201),
            code: None,
            replayed,
            body: None,
            headers: Vec::new(),
            why: None,
        });
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_is_the_longest_time_without_a_new_answer_of_any_and_of_the_worst_gateway() {
        let directory = tempfile::tempdir().unwrap();
        let run = Run {
            seed: 1,
            short: true,
            all_replayed: true,
        };
        let (recorder, _writing) = Recorder::create(&directory.path().join("h"), run).unwrap();
        advance(Duration::from_secs(100)).await;
        recorder.begin_pause();
        success(&recorder, "one", false);
        advance(Duration::from_secs(7)).await;
        // From a cache: it shows nothing about the store.
        success(&recorder, "one", true);
        advance(Duration::from_secs(1)).await;
        success(&recorder, "one", false);
        advance(Duration::from_secs(3)).await;
        success(&recorder, "two", false);
        let pause = recorder.end_pause(Instant::now()).await;
        assert_eq!(pause, (8_000, 11_000));
        recorder.begin_pause();
        advance(Duration::from_secs(2)).await;
        assert_eq!(recorder.end_pause(Instant::now()).await, (2_000, 2_000));
    }
}
