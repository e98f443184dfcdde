//! Load: new keys, replays of them, and duplicates at the same time, as fast as the target takes
//! them. One thread and one request under way on each connection, since it shares the machine
//! with what it measures more often than not.

mod body;
mod connection;
mod figures;
mod plan;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use serde::Serialize;
use tokio::time::Instant;

pub use figures::{Load, Part};

use crate::target::{Dialect, Header};
use crate::{Address, Error, World};
use connection::{Lane, Seen};
use figures::Tally;
use plan::Plan;

/// What is driven, and how.
#[derive(Clone)]
#[non_exhaustive]
pub struct Drive {
    /// Where requests go.
    pub address: Address,
    /// How they are sent.
    pub method: String,
    /// What they carry, with places to fill.
    pub body: String,
    /// What every request carries.
    pub headers: Vec<Header>,
    /// The name of the header that the key is in.
    pub key_header: String,
    /// How keys are written.
    pub dialect: Dialect,
    /// How many requests are under way at once.
    pub connections: usize,
    /// How long each of the three parts takes.
    pub duration: Duration,
}

impl Drive {
    /// With defaults that fit `semel demo`.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            method: "POST".to_owned(),
            body: crate::target::BODY.to_owned(),
            headers: Vec::new(),
            key_header: "Idempotency-Key".to_owned(),
            dialect: Dialect::Ietf,
            connections: 16,
            duration: Duration::from_secs(10),
        }
    }
}

/// Replays choose among at most so many keys, so that a long run needs no more memory.
const MOST_KEYS: usize = 1 << 20;

/// Which request is sent next, and until when.
struct Course {
    plan: Plan,
    end: Instant,
    next: Cell<u64>,
    made: RefCell<Vec<u64>>,
}

/// Drives the target: first with new keys, then with those again, then with pairs of duplicates.
/// What is not a success counts as an error, and never into the latencies.
///
/// # Errors
/// Where nothing answers, or no request with a new key succeeds.
///
/// # Cancellation
/// Dropping the future closes its connections.
pub async fn drive(drive: &Drive, world: &dyn World) -> Result<Load, Error> {
    let plan = Plan::new(drive);
    let next = Cell::new(0);
    let (new, made) = part(drive, world, plan.clone(), &next, Vec::new(), Kind::New).await?;
    if made.is_empty() {
        return Err(Error::NotAccepted { seen: new.told() });
    }
    let (replay, made) = part(drive, world, plan.clone(), &next, made, Kind::Replay).await?;
    let (duplicates, _) = part(drive, world, plan, &next, made, Kind::Pairs).await?;
    Ok(Load {
        url: drive.address.to_string(),
        connections: drive.connections,
        seconds: drive.duration.as_secs_f64(),
        new,
        replay,
        duplicates,
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
enum Kind {
    New,
    Replay,
    Pairs,
}

async fn part(
    drive: &Drive,
    world: &dyn World,
    plan: Plan,
    next: &Cell<u64>,
    made: Vec<u64>,
    kind: Kind,
) -> Result<(Part, Vec<u64>), Error> {
    let open = || Lane::open(&drive.address, world);
    let lanes = join_all((0..drive.connections).map(|_| open())).await;
    let mut lanes: Vec<Lane<'_>> =
        lanes
            .into_iter()
            .collect::<Result<_, _>>()
            .map_err(|error| Error::Unreachable {
                address: drive.address.to_string(),
                reason: error.to_string(),
            })?;
    let begin = Instant::now();
    let course = Rc::new(Course {
        plan,
        end: begin + drive.duration,
        next: Cell::new(next.get()),
        made: RefCell::new(made),
    });
    let tallies = match kind {
        Kind::New => {
            let runs = lanes.iter_mut().map(|lane| new_keys(lane, &course));
            join_all(runs).await
        }
        Kind::Replay => {
            let runs = lanes.iter_mut().map(|lane| replays(lane, &course));
            join_all(runs).await
        }
        Kind::Pairs => {
            let pairs = lanes.chunks_mut(2).filter_map(|pair| match pair {
                [one, two] => Some(pairs(one, two, &course)),
                _ => None,
            });
            join_all(pairs).await
        }
    };
    let took = begin.elapsed();
    next.set(course.next.get());
    let mut whole = Tally::default();
    for tally in tallies {
        whole.add(tally);
    }
    Ok((whole.part(took), course.made.take()))
}

impl Course {
    fn number(&self) -> Option<u64> {
        if Instant::now() >= self.end {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        Some(number)
    }
}

async fn new_keys(lane: &mut Lane<'_>, course: &Course) -> Tally {
    let mut tally = Tally::default();
    while let Some(number) = course.number() {
        let seen = lane.ask(|bytes| course.plan.write(number, bytes)).await;
        let success = seen.as_ref().is_ok_and(Seen::is_success);
        tally.count(&seen, false);
        let mut made = course.made.borrow_mut();
        if success && made.len() < MOST_KEYS {
            made.push(number);
        }
    }
    tally
}

async fn replays(lane: &mut Lane<'_>, course: &Course) -> Tally {
    let mut tally = Tally::default();
    while let Some(turn) = course.number() {
        let number = {
            let made = course.made.borrow();
            let at = turn % made.len().max(1) as u64;
            usize::try_from(at)
                .ok()
                .and_then(|at| made.get(at).copied())
        };
        let Some(number) = number else { break };
        let seen = lane.ask(|bytes| course.plan.write(number, bytes)).await;
        tally.count(&seen, false);
    }
    tally
}

/// The same request on two connections at once. Who is told to come back was answered well.
async fn pairs(one: &mut Lane<'_>, two: &mut Lane<'_>, course: &Course) -> Tally {
    let mut tally = Tally::default();
    while let Some(number) = course.number() {
        let write = |bytes: &mut Vec<u8>| course.plan.write(number, bytes);
        let (first, second) = join(one.ask(write), two.ask(write)).await;
        tally.count(&first, true);
        tally.count(&second, true);
    }
    tally
}
