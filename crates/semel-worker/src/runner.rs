//! The worker: every job runs in its own loop.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use semel_core::outbox::Refused;
use semel_core::store::{MAX_BATCH, Result};
use semel_core::{BackgroundJob, Backoff, OperationId, Store};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::meters::{Labels, names};
use crate::reconcilers::Reconcilers;
use crate::retention::Sizes;

/// Intervals and batch sizes of the jobs. An interval passes after a round with a partial batch;
/// after a full batch the next round starts at once. Each interval is shortened by a jitter of up
/// to a quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Between two sweeps: how soon an expired lease is noticed.
    pub sweep: Duration,
    /// The most records in one sweep, and in one round of [`Worker::dead_letter_unreconciled`].
    pub sweep_batch: usize,
    /// Between two claims of due unknown records.
    pub reconcile: Duration,
    /// The most concurrent lookups per operation: a provider that hangs delays only its own.
    pub lookups: usize,
    /// Between two rounds over the parked webhook events.
    pub deliver: Duration,
    /// The most parked events in one round.
    pub deliver_batch: usize,
    /// The backoff of one parked event.
    pub redeliver: Backoff,
    /// How often a parked event is tried before it is given up.
    pub redeliver_tries: u32,
    /// Between two rounds of retention.
    pub retain: Duration,
    /// The largest batch of retention. A slow store gets smaller ones.
    pub retain_batch: usize,
    /// Between two updates of the gauges, and two rounds of [`Worker::dead_letter_unreconciled`].
    pub measure: Duration,
    /// The longest pause while the store is failing. The pause doubles from the interval up to
    /// this.
    pub max_backoff: Duration,
    /// How long a running round may continue after shutdown begins.
    pub shutdown_timeout: Duration,
}

/// Runs background jobs: sweep, reconcile, dead-letter, webhook delivery, retention and gauges.
/// Any number of processes may run one on the same store. Clones are the same worker.
pub struct Worker<S> {
    pub(crate) store: Arc<S>,
    pub(crate) reconcilers: Reconcilers<S>,
    pub(crate) pace: Pace,
    pub(crate) dead_letter_after: Option<Duration>,
    pub(crate) dead_letter_cursor: Arc<Mutex<Option<OperationId>>>,
    pub(crate) labels: Arc<Labels>,
    pub(crate) sizes: Arc<Sizes>,
    jobs: Vec<Arc<dyn BackgroundJob>>,
}

/// A loop of the worker.
#[derive(Clone)]
enum Job {
    Sweep,
    Reconcile(Box<str>),
    DeadLetter,
    Deliver,
    Retain,
    Measure,
    External(Arc<dyn BackgroundJob>),
}

/// When the next round starts.
enum Next {
    /// At once: this batch was full.
    Now,
    /// After the interval.
    Later,
}

impl<S> Worker<S> {
    /// A worker without reconciliation: it leaves unknown records alone.
    pub fn new(store: S) -> Self {
        let store = Arc::new(store);
        Self {
            reconcilers: Reconcilers::over(Arc::clone(&store)),
            store,
            pace: Pace::default(),
            dead_letter_after: None,
            dead_letter_cursor: Arc::default(),
            labels: Arc::default(),
            sizes: Arc::default(),
            jobs: Vec::new(),
        }
    }

    /// Sets the reconciliation strategies.
    pub fn reconcilers(self, reconcilers: Reconcilers<S>) -> Self {
        Self {
            reconcilers,
            ..self
        }
    }

    /// Sets the pace. Batches are clamped to 1..=[`MAX_BATCH`].
    pub fn pace(self, pace: Pace) -> Self {
        let batch = |limit: usize| limit.clamp(1, MAX_BATCH);
        let pace = Pace {
            sweep_batch: batch(pace.sweep_batch),
            lookups: batch(pace.lookups),
            deliver_batch: batch(pace.deliver_batch),
            retain_batch: batch(pace.retain_batch),
            ..pace
        };
        Self { pace, ..self }
    }

    /// Dead-letters records of operations without a strategy here, once they have been due for
    /// `after` and no process has claimed them. Without this the worker leaves such records alone:
    /// another process may have a strategy for them.
    pub fn dead_letter_unreconciled(self, after: Duration) -> Self {
        Self {
            dead_letter_after: Some(after),
            ..self
        }
    }

    /// Adds a job that runs in its own loop, such as a [relay](crate::Relay).
    pub fn with_job(mut self, job: Arc<dyn BackgroundJob>) -> Self {
        self.jobs.push(job);
        self
    }
}

impl<S: Store> Worker<S> {
    /// Runs until `shutdown` is cancelled and the running rounds have ended, or
    /// [`shutdown_timeout`](Pace::shutdown_timeout) has passed. Jobs with a stop step get the same
    /// time again for it.
    ///
    /// A job backs off while the store fails. A round that panics is logged, and its job
    /// continues.
    ///
    /// # Cancellation
    /// All rounds are abandoned, as if the process had died: what was claimed comes due again.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut jobs = vec![Job::Sweep, Job::Deliver, Job::Retain, Job::Measure];
        jobs.extend(
            self.reconcilers
                .operations()
                .map(|operation| Job::Reconcile(operation.into())),
        );
        if self.dead_letter_after.is_some() {
            jobs.push(Job::DeadLetter);
        }
        jobs.extend(self.jobs.iter().cloned().map(Job::External));
        let mut loops = JoinSet::new();
        for job in jobs {
            loops.spawn(self.clone().run_job(job, shutdown.clone()));
        }
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a job of the worker panicked and ended");
            }
        }
    }

    /// Repeats one job until shutdown, then runs its stop step.
    async fn run_job(self, job: Job, shutdown: CancellationToken) {
        self.repeat(&job, shutdown).await;
        if let Job::External(job) = job {
            let name = job.name();
            let stop = AbortOnDropHandle::new(tokio::spawn(async move { job.stop().await }));
            match tokio::time::timeout(self.pace.shutdown_timeout, stop).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::error!(job = name, %error, "the stop step of a job panicked");
                }
                Err(_) => tracing::warn!(job = name, "the stop step of a job timed out"),
            }
        }
    }

    /// Runs rounds until shutdown.
    async fn repeat(&self, job: &Job, shutdown: CancellationToken) {
        let mut failures = FailureStreak::default();
        loop {
            let (worker, one, stopping) = (self.clone(), job.clone(), shutdown.clone());
            // In its own task: a panic ends the round, and the job starts the next.
            let round = tokio::spawn(async move { worker.round(&one, &stopping).await });
            let mut round = AbortOnDropHandle::new(round);
            let deadline = async {
                shutdown.cancelled().await;
                tokio::time::sleep(self.pace.shutdown_timeout).await;
            };
            let ended = tokio::select! {
                biased;
                ended = &mut round => ended,
                () = deadline => {
                    tracing::warn!(job = job.name(), "a round did not end in time and was abandoned; what it had claimed comes due again");
                    // Wait for its end before the stop step: it may be in the middle of a step.
                    round.abort();
                    let _ = tokio::time::timeout(self.pace.shutdown_timeout, round).await;
                    return;
                }
            };
            let pause = match failures.record(job, ended) {
                Some(Next::Now) => Duration::ZERO,
                Some(Next::Later) | None => self.pause(job, failures.count),
            };
            let pause = tokio::time::sleep(pause);
            if shutdown.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    async fn round(&self, job: &Job, shutdown: &CancellationToken) -> Result<Next> {
        let pace = &self.pace;
        let full = match job {
            Job::Sweep => self.sweep_once().await?.swept >= pace.sweep_batch,
            Job::Reconcile(operation) => self.reconcile(operation).await?.claimed >= pace.lookups,
            Job::DeadLetter => self.dead_letter_unreconciled_once().await?.dead_lettered > 0,
            Job::Deliver => self.deliver_once().await?.claimed >= pace.deliver_batch,
            Job::Retain => self.retain(shutdown).await?.more,
            Job::Measure => {
                self.measure_once().await?;
                false
            }
            Job::External(job) => job.round().await?,
        };
        Ok(if full { Next::Now } else { Next::Later })
    }

    /// The interval, doubled for every failure in a row, with jitter so that processes which were
    /// started together drift apart.
    fn pause(&self, job: &Job, failures: u32) -> Duration {
        let every = match job {
            Job::Sweep => self.pace.sweep,
            Job::Reconcile(_) => self.pace.reconcile,
            Job::Deliver => self.pace.deliver,
            Job::Retain => self.pace.retain,
            Job::DeadLetter | Job::Measure => self.pace.measure,
            Job::External(job) => job.every(),
        };
        let backoff = Backoff {
            every,
            max_every: self.pace.max_backoff.max(every),
        };
        // A fresh id serves as the random seed of the jitter.
        backoff.delay(OperationId::generate(), failures.saturating_add(1))
    }
}

/// Counts the failures of a job in a row. Only the first one and the recovery are logged above
/// debug.
#[derive(Default)]
struct FailureStreak {
    count: u32,
}

impl FailureStreak {
    fn record(
        &mut self,
        job: &Job,
        ended: std::result::Result<Result<Next>, JoinError>,
    ) -> Option<Next> {
        let name = job.name();
        let first = self.count == 0;
        let (result, next) = match ended {
            Ok(Ok(next)) => {
                if !first {
                    tracing::info!(job = name, failures = self.count, "a job recovered");
                }
                ("done", Some(next))
            }
            Ok(Err(error)) => {
                let error = root_cause(&error);
                if first {
                    tracing::error!(job = name, %error, "a job failed; the worker retries it with backoff");
                } else {
                    tracing::debug!(job = name, %error, "a job failed again");
                }
                ("failed", None)
            }
            // Always logged: a panic is a bug.
            Err(error) => {
                tracing::error!(job = name, %error, "a round panicked; its job continues");
                ("panicked", None)
            }
        };
        self.count = match next {
            Some(_) => 0,
            None => self.count.saturating_add(1),
        };
        metrics::counter!(names::TICKS, "task" => name, "result" => result).increment(1);
        next
    }
}

/// The broker's own error where a relay failed because of its broker, else the store's.
fn root_cause(error: &semel_core::Error) -> &dyn std::error::Error {
    let source = std::error::Error::source(error);
    let refused = source.and_then(|source| source.downcast_ref::<Refused>());
    refused.map_or(error, |refused| refused)
}

impl Job {
    fn name(&self) -> &'static str {
        match self {
            Self::Sweep => "sweep",
            Self::Reconcile(_) => "reconcile",
            Self::DeadLetter => "dead_letter",
            Self::Deliver => "deliver",
            Self::Retain => "retain",
            Self::Measure => "measure",
            Self::External(job) => job.name(),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sweep: Duration::from_secs(1),
            sweep_batch: 100,
            reconcile: Duration::from_secs(1),
            lookups: 16,
            deliver: Duration::from_secs(1),
            deliver_batch: 50,
            redeliver: Backoff {
                every: Duration::from_secs(2),
                max_every: Duration::from_mins(5),
            },
            redeliver_tries: 20,
            retain: Duration::from_secs(10),
            retain_batch: 200,
            measure: Duration::from_secs(10),
            max_backoff: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(5),
        }
    }
}

impl<S> Clone for Worker<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            reconcilers: self.reconcilers.clone(),
            pace: self.pace,
            dead_letter_after: self.dead_letter_after,
            dead_letter_cursor: Arc::clone(&self.dead_letter_cursor),
            labels: Arc::clone(&self.labels),
            sizes: Arc::clone(&self.sizes),
            jobs: self.jobs.clone(),
        }
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("reconcilers", &self.reconcilers)
            .field("pace", &self.pace)
            .field("dead_letter_after", &self.dead_letter_after)
            .finish_non_exhaustive()
    }
}
