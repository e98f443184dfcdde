//! The worker: every job in a loop of its own.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use semel_core::outbox::Refused;
use semel_core::store::{MAX_BATCH, Result};
use semel_core::{Backoff, Chore, Inbox, Inspect, Maintain, OperationId, Store};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::meters::{Labels, names};
use crate::reconcilers::Reconcilers;
use crate::retention::Sizes;

/// How fast the jobs go. An interval is what passes after a round that found little; after a full
/// one the next begins at once. Each is shortened by a jitter of up to a quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Between two sweeps: how long after its lease a silent owner is noticed.
    pub sweep: Duration,
    /// The most executions that one sweep takes from their owners, and the most unknowns that are
    /// set aside at once.
    pub sweep_batch: usize,
    /// Between two claims of due unknowns.
    pub reconcile: Duration,
    /// The most looks at once, for each command: a provider that hangs holds up its own only.
    pub looks: usize,
    /// Between two looks at the parked events.
    pub deliver: Duration,
    /// The most parked events in one round.
    pub deliver_batch: usize,
    /// When one parked event is looked at again.
    pub redeliver: Backoff,
    /// How often a parked event is looked at before it is given up.
    pub redeliver_tries: u32,
    /// Between two rounds of retention.
    pub retain: Duration,
    /// The most that one batch of retention lets go of. A slow store gets smaller ones.
    pub retain_batch: usize,
    /// Between two looks at how things stand.
    pub measure: Duration,
    /// The longest pause while the store is failing. It doubles from the interval up to here.
    pub outage: Duration,
    /// How long a round that is under way may go on when the process stops.
    pub patience: Duration,
}

/// Sweeps, reconciles, sets aside, delivers and lets go. Any number of processes may run one on
/// the same store. Clones are the same worker.
pub struct Worker<S> {
    pub(crate) store: Arc<S>,
    pub(crate) reconcilers: Reconcilers<S>,
    pub(crate) pace: Pace,
    pub(crate) others: bool,
    pub(crate) labels: Arc<Labels>,
    pub(crate) sizes: Arc<Sizes>,
    chores: Vec<Arc<dyn Chore>>,
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
    Chore(Arc<dyn Chore>),
}

/// When the next round is due.
enum Next {
    /// At once: this one was full.
    Now,
    /// After the interval.
    Later,
}

impl<S> Worker<S> {
    /// A worker that knows no way to find out about anything: what is unknown is set aside for a
    /// person at once.
    pub fn new(store: S) -> Self {
        let store = Arc::new(store);
        Self {
            reconcilers: Reconcilers::over(Arc::clone(&store)),
            store,
            pace: Pace::default(),
            others: true,
            labels: Arc::default(),
            sizes: Arc::default(),
            chores: Vec::new(),
        }
    }

    /// How outcomes are found.
    pub fn reconcilers(self, reconcilers: Reconcilers<S>) -> Self {
        Self {
            reconcilers,
            ..self
        }
    }

    /// How fast it goes. Batches are at least 1 and at most [`MAX_BATCH`].
    pub fn pace(self, pace: Pace) -> Self {
        let batch = |limit: usize| limit.clamp(1, MAX_BATCH);
        let pace = Pace {
            sweep_batch: batch(pace.sweep_batch),
            looks: batch(pace.looks),
            deliver_batch: batch(pace.deliver_batch),
            retain_batch: batch(pace.retain_batch),
            ..pace
        };
        Self { pace, ..self }
    }

    /// Leaves unknowns of commands that no reconciler names to somebody else. For several
    /// applications with one store, of which each knows how to ask about its own: without this,
    /// each would set aside what only the other can find out.
    pub fn leave_others(self) -> Self {
        Self {
            others: false,
            ..self
        }
    }

    /// Something else to repeat, in a loop of its own and treated like the rest: such as a
    /// [relay](crate::Relay).
    pub fn also(mut self, chore: Arc<dyn Chore>) -> Self {
        self.chores.push(chore);
        self
    }
}

impl<S: Store + Maintain + Inspect + Inbox> Worker<S> {
    /// Runs until `shutdown` is cancelled and the rounds under way have ended, or
    /// [`patience`](Pace::patience) is over. Chores that have something to do at the end get as
    /// much time again for it.
    ///
    /// A store that fails is asked again after growing pauses. A round that panics is reported,
    /// and its job goes on.
    ///
    /// # Cancellation
    /// All rounds are given up, as if the process had died: what was claimed comes due again.
    pub async fn run(self, shutdown: CancellationToken) {
        let mut jobs = vec![Job::Sweep, Job::Deliver, Job::Retain, Job::Measure];
        jobs.extend(
            self.reconcilers
                .operations()
                .map(|operation| Job::Reconcile(operation.into())),
        );
        if self.others {
            jobs.push(Job::DeadLetter);
        }
        jobs.extend(self.chores.iter().cloned().map(Job::Chore));
        let mut loops = JoinSet::new();
        for job in jobs {
            loops.spawn(self.clone().keep(job, shutdown.clone()));
        }
        while let Some(ended) = loops.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a job of the worker ended");
            }
        }
    }

    /// One job, until the end.
    async fn keep(self, job: Job, shutdown: CancellationToken) {
        self.repeat(&job, shutdown).await;
        if let Job::Chore(chore) = job {
            let name = chore.name();
            let stop = AbortOnDropHandle::new(tokio::spawn(async move { chore.stop().await }));
            match tokio::time::timeout(self.pace.patience, stop).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(job = name, %error, "the end of a job panicked"),
                Err(_) => tracing::warn!(job = name, "the end of a job took too long"),
            }
        }
    }

    /// Round after round.
    async fn repeat(&self, job: &Job, shutdown: CancellationToken) {
        let mut outage = Outage::default();
        loop {
            let (worker, one, stopping) = (self.clone(), job.clone(), shutdown.clone());
            // In a task of its own: a panic ends the round, and the job begins the next.
            let round = tokio::spawn(async move { worker.round(&one, &stopping).await });
            let mut round = AbortOnDropHandle::new(round);
            let impatience = async {
                shutdown.cancelled().await;
                tokio::time::sleep(self.pace.patience).await;
            };
            let ended = tokio::select! {
                biased;
                ended = &mut round => ended,
                () = impatience => {
                    tracing::warn!(job = job.name(), "a round was given up; what it had claimed comes due again");
                    // It has ended before anything else is done: it may be in the middle of a step.
                    round.abort();
                    let _ = tokio::time::timeout(self.pace.patience, round).await;
                    return;
                }
            };
            let pause = match outage.judge(job, ended) {
                Some(Next::Now) => Duration::ZERO,
                Some(Next::Later) | None => self.pause(job, outage.failures),
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
            Job::Reconcile(operation) => self.reconcile(operation).await?.claimed >= pace.looks,
            Job::DeadLetter => self.dead_letter_others().await?.claimed >= pace.sweep_batch,
            Job::Deliver => self.deliver_once().await?.claimed >= pace.deliver_batch,
            Job::Retain => self.retain(shutdown).await?.more,
            Job::Measure => {
                self.measure_once().await?;
                false
            }
            Job::Chore(chore) => chore.round().await?,
        };
        Ok(if full { Next::Now } else { Next::Later })
    }

    /// The interval, doubled for every failure in a row, and jittered so that processes that were
    /// started together do not stay together.
    fn pause(&self, job: &Job, failures: u32) -> Duration {
        let every = match job {
            Job::Sweep => self.pace.sweep,
            Job::Reconcile(_) | Job::DeadLetter => self.pace.reconcile,
            Job::Deliver => self.pace.deliver,
            Job::Retain => self.pace.retain,
            Job::Measure => self.pace.measure,
            Job::Chore(chore) => chore.every(),
        };
        let backoff = Backoff {
            every,
            max_every: self.pace.outage.max(every),
        };
        // A fresh name is as good as a die, and there is no other here.
        backoff.delay(OperationId::generate(), failures.saturating_add(1))
    }
}

/// How often a job has failed in a row. Its beginning and its end are worth a line each.
#[derive(Default)]
struct Outage {
    failures: u32,
}

impl Outage {
    fn judge(
        &mut self,
        job: &Job,
        ended: std::result::Result<Result<Next>, JoinError>,
    ) -> Option<Next> {
        let name = job.name();
        let first = self.failures == 0;
        let (result, next) = match ended {
            Ok(Ok(next)) => {
                if !first {
                    tracing::info!(job = name, failures = self.failures, "a job works again");
                }
                ("done", Some(next))
            }
            Ok(Err(error)) => {
                let error = blamed(&error);
                if first {
                    tracing::error!(job = name, %error, "a job failed; it is tried again until it works");
                } else {
                    tracing::debug!(job = name, %error, "a job failed again");
                }
                ("failed", None)
            }
            // Always worth a line: it is a bug.
            Err(error) => {
                tracing::error!(job = name, %error, "a round panicked; its job goes on");
                ("panicked", None)
            }
        };
        self.failures = match next {
            Some(_) => 0,
            None => self.failures.saturating_add(1),
        };
        metrics::counter!(names::TICKS, "task" => name, "result" => result).increment(1);
        next
    }
}

/// Whose fault it is, in its own words: a relay fails by its broker as well as by its store.
fn blamed(error: &semel_core::Error) -> &dyn std::error::Error {
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
            Self::Chore(chore) => chore.name(),
        }
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            sweep: Duration::from_secs(1),
            sweep_batch: 100,
            reconcile: Duration::from_secs(1),
            looks: 16,
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
            outage: Duration::from_secs(30),
            patience: Duration::from_secs(5),
        }
    }
}

impl<S> Clone for Worker<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            reconcilers: self.reconcilers.clone(),
            pace: self.pace,
            others: self.others,
            labels: Arc::clone(&self.labels),
            sizes: Arc::clone(&self.sizes),
            chores: self.chores.clone(),
        }
    }
}

impl<S> fmt::Debug for Worker<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("reconcilers", &self.reconcilers)
            .field("pace", &self.pace)
            .field("others", &self.others)
            .finish_non_exhaustive()
    }
}
