//! What somebody else gives a worker to repeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use semel_core::chore::{Round, Stop};
use semel_core::{Chore, Error, Status};
use semel_testkit::faulty::Gate;
use semel_worker::{CancellationToken, Pace, Schedule};
use tokio::time::Instant;

use crate::support::{LEASE, PAY, SECOND, Script, World, paid, settle};

/// How the rounds of a chore end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Little,
    Full,
    Failed,
    Panicked,
    Never,
}

struct Counting {
    ends: Ends,
    rounds: AtomicUsize,
    stops: AtomicUsize,
    /// Rounds that are under way.
    open: AtomicUsize,
    stop: Gate,
}

/// Counts a round that is given up as over, too.
struct Open<'a>(&'a AtomicUsize);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Counting {
    fn new(ends: Ends) -> Arc<Self> {
        let stop = Gate::closed();
        stop.open();
        Arc::new(Self {
            ends,
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

impl Chore for Counting {
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
            let _open = Open(&self.open);
            tokio::task::yield_now().await;
            match self.ends {
                Ends::Little => Ok(false),
                Ends::Full => Ok(self.rounds() < 10),
                Ends::Failed => Err(Error::Unavailable {
                    reason: "it is away".into(),
                    source: None,
                }),
                Ends::Panicked => panic!("a bug of the chore"),
                Ends::Never => std::future::pending().await,
            }
        })
    }

    fn stop(&self) -> Stop<'_> {
        Box::pin(async {
            self.stops.fetch_add(1, Ordering::SeqCst);
            assert_eq!(self.open.load(Ordering::SeqCst), 0, "a round goes on");
            self.stop.pass().await;
        })
    }
}

/// Runs a worker with a chore for a minute, and says how long it took to stop.
async fn run(world: &World, chore: &Arc<Counting>) -> Duration {
    let worker = world.asking(Schedule::default(), Script::of([paid()]));
    let chore: Arc<dyn Chore> = Arc::clone(chore) as Arc<dyn Chore>;
    let worker = worker.also(chore);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(worker.run(shutdown.clone()));
    world.pass(60 * SECOND).await;
    shutdown.cancel();
    let stopping = Instant::now();
    running.await.unwrap();
    stopping.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_chore_is_repeated_like_every_job_and_stopped_once() {
    for (ends, least, most) in [
        (Ends::Little, 60, 90),
        (Ends::Full, 65, 100),
        // After growing pauses.
        (Ends::Failed, 4, 12),
        (Ends::Panicked, 4, 12),
    ] {
        let world = World::new();
        let chore = Counting::new(ends);
        let silent = world.begin(PAY, "silent").await;
        world.clock.advance(LEASE);
        assert!(run(&world, &chore).await < SECOND);
        let rounds = chore.rounds();
        assert!((least..=most).contains(&rounds), "{rounds}");
        assert_eq!(chore.stops(), 1);
        // The other jobs did theirs.
        assert_eq!(world.status(silent).await, Status::Completed);
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_round_is_followed_by_the_next_at_once() {
    let world = World::new();
    let chore = Counting::new(Ends::Full);
    let worker = world.asking(Schedule::default(), Script::default());
    let worker = worker.also(Arc::clone(&chore) as Arc<dyn Chore>);
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(worker.run(shutdown.clone()));
    settle().await;
    assert_eq!(chore.rounds(), 10);
    shutdown.cancel();
    running.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_chore_that_does_not_end_is_given_up_and_stopped_all_the_same() {
    let world = World::new();
    let chore = Counting::new(Ends::Never);
    let took = run(&world, &chore).await;
    assert!(took <= Pace::default().patience + SECOND, "{took:?}");
    assert_eq!((chore.rounds(), chore.stops()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_chore_is_not_waited_for_without_end() {
    let world = World::new();
    let chore = Arc::new(Counting {
        stop: Gate::closed(),
        ends: Ends::Little,
        rounds: AtomicUsize::new(0),
        stops: AtomicUsize::new(0),
        open: AtomicUsize::new(0),
    });
    let took = run(&world, &chore).await;
    assert!(took <= Pace::default().patience + SECOND, "{took:?}");
    assert_eq!(chore.stops(), 1);
}
