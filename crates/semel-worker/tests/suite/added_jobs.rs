//! Jobs that are added to a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::background_job::{Round, Stop};
use semel_core::{BackgroundJob, Error, Status};
use semel_testkit::faulty::Gate;
use semel_worker::{CancellationToken, Pace, Schedule};
use tokio::time::Instant;

use crate::support::{Fixture, LEASE, PAY, SECOND, ScriptedProvider, paid, settle};

/// How the rounds of a job end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RoundEnd {
    Little,
    Full,
    Failed,
    Panicked,
    Never,
}

struct CountingJob {
    round_end: RoundEnd,
    rounds: AtomicUsize,
    stops: AtomicUsize,
    /// Running rounds.
    open: AtomicUsize,
    stop: Gate,
}

/// Counts an abandoned round as ended.
struct RunningRound<'a>(&'a AtomicUsize);

impl Drop for RunningRound<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CountingJob {
    fn new(round_end: RoundEnd) -> Arc<Self> {
        let stop = Gate::closed();
        stop.open();
        Arc::new(Self {
            round_end,
            rounds: AtomicUsize::new(0),
            stops: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            stop,
        })
    }

    fn rounds(&self) -> usize {
        self.rounds.load(Ordering::SeqCst)
    }

    fn stops(&self) -> usize {
        self.stops.load(Ordering::SeqCst)
    }
}

impl BackgroundJob for CountingJob {
    fn name(&self) -> &'static str {
        "counting"
    }

    fn every(&self) -> Duration {
        SECOND
    }

    fn round(&self) -> Round<'_> {
        Box::pin(async {
            self.rounds.fetch_add(1, Ordering::SeqCst);
            self.open.fetch_add(1, Ordering::SeqCst);
            let _running = RunningRound(&self.open);
            tokio::task::yield_now().await;
            match self.round_end {
                RoundEnd::Little => Ok(false),
                RoundEnd::Full => Ok(self.rounds() < 10),
                RoundEnd::Failed => Err(Error::Unavailable {
                    reason: "unavailable in this test".into(),
                    source: None,
                }),
                RoundEnd::Panicked => panic!("a bug in the job"),
                RoundEnd::Never => std::future::pending().await,
            }
        })
    }

    fn stop(&self) -> Stop<'_> {
        Box::pin(async {
            self.stops.fetch_add(1, Ordering::SeqCst);
            assert_eq!(
                self.open.load(Ordering::SeqCst),
                0,
                "a round is still running"
            );
            self.stop.pass().await;
        })
    }
}

/// Runs a worker with a job for a minute, and returns how long it took to stop.
async fn run(fixture: &Fixture, job: &Arc<CountingJob>) -> Duration {
    let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::of([paid()]));
    let job: Arc<dyn BackgroundJob> = Arc::clone(job) as Arc<dyn BackgroundJob>;
    let worker = worker.with_job(job);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(worker.run(shutdown.clone()));
    fixture.pass(60 * SECOND).await;
    shutdown.cancel();
    let stopping = Instant::now();
    running.await.unwrap();
    stopping.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_added_job_is_repeated_and_stopped_once() {
    for (round_end, least, most) in [
        (RoundEnd::Little, 60, 90),
        (RoundEnd::Full, 65, 100),
        // With growing pauses.
        (RoundEnd::Failed, 4, 12),
        (RoundEnd::Panicked, 4, 12),
    ] {
        let fixture = Fixture::new();
        let job = CountingJob::new(round_end);
        let silent = fixture.begin(PAY, "silent").await;
        fixture.clock.advance(LEASE);
        assert!(run(&fixture, &job).await < SECOND);
        let rounds = job.rounds();
        assert!((least..=most).contains(&rounds), "{rounds}");
        assert_eq!(job.stops(), 1);
        // The built-in jobs ran, too.
        assert_eq!(fixture.status(silent).await, Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_round_is_followed_by_the_next_at_once() {
    let fixture = Fixture::new();
    let job = CountingJob::new(RoundEnd::Full);
    let worker = fixture.worker_with(Schedule::default(), ScriptedProvider::default());
    let worker = worker.with_job(Arc::clone(&job) as Arc<dyn BackgroundJob>);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(worker.run(shutdown.clone()));
    settle().await;
    assert_eq!(job.rounds(), 10);
    shutdown.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_round_that_hangs_is_abandoned_and_its_job_still_stopped() {
    let fixture = Fixture::new();
    let job = CountingJob::new(RoundEnd::Never);
    let took = run(&fixture, &job).await;
    assert!(
        took <= Pace::default().shutdown_timeout + SECOND,
        "{took:?}"
    );
    assert_eq!((job.rounds(), job.stops()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_step_that_hangs_times_out() {
    let fixture = Fixture::new();
    let job = Arc::new(CountingJob {
        stop: Gate::closed(),
        round_end: RoundEnd::Little,
        rounds: AtomicUsize::new(0),
        stops: AtomicUsize::new(0),
        open: AtomicUsize::new(0),
    });
    let took = run(&fixture, &job).await;
    assert!(
        took <= Pace::default().shutdown_timeout + SECOND,
        "{took:?}"
    );
    assert_eq!(job.stops(), 1);
}
