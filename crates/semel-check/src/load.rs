//! The load generator: new keys, replays of them, and concurrent duplicates, as fast as the target
//! responds. One thread, and one request at a time on each connection, since it often shares the
//! machine with its target.

mod body;
mod connection;
mod report;
mod request_template;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use serde::Serialize;
use tokio::time::Instant;

pub use report::{LoadReport, PhaseReport};

use crate::target::{Dialect, Header};
use crate::{Address, Environment, Error};
use connection::{LoadConnection, Sample};
use report::Tally;
use request_template::RequestTemplate;

/// The target and parameters of a load run.
#[derive(Clone)]
#[non_exhaustive]
pub struct LoadOptions {
    /// Where requests go.
    pub address: Address,
    /// The HTTP method.
    pub method: String,
    /// The request body, with placeholders.
    pub body: String,
    /// Headers of every request.
    pub headers: Vec<Header>,
    /// The name of the key's header.
    pub key_header: String,
    /// How keys are written.
    pub dialect: Dialect,
    /// Number of concurrent connections, with one request each.
    pub connections: usize,
    /// Duration of each of the three phases.
    pub duration: Duration,
}

impl LoadOptions {
    /// A target with defaults that fit `semel demo`.
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

/// Most keys that are kept for replays, so that a long run needs bounded memory.
const MOST_KEYS: usize = 1 << 20;

/// Numbers the requests of a phase until it ends.
struct Schedule {
    template: RequestTemplate,
    end: Instant,
    next: Cell<u64>,
    succeeded: RefCell<Vec<u64>>,
}

/// Runs three phases: new keys, replays of them, and pairs of duplicates. A response that is not a
/// success counts as an error and is not part of the latencies.
///
/// # Errors
/// If the target does not respond, or no request with a new key succeeds.
///
/// # Cancellation
/// Dropping the future closes its connections.
pub async fn run_load(
    options: &LoadOptions,
    environment: &dyn Environment,
) -> Result<LoadReport, Error> {
    let template = RequestTemplate::new(options);
    let next = Cell::new(0);
    let (new, succeeded) = run_phase(
        options,
        environment,
        template.clone(),
        &next,
        Vec::new(),
        Phase::New,
    )
    .await?;
    if succeeded.is_empty() {
        return Err(Error::NotAccepted {
            seen: new.status_summary(),
        });
    }
    let (replay, succeeded) = run_phase(
        options,
        environment,
        template.clone(),
        &next,
        succeeded,
        Phase::Replay,
    )
    .await?;
    let (duplicates, _) = run_phase(
        options,
        environment,
        template,
        &next,
        succeeded,
        Phase::Pairs,
    )
    .await?;
    Ok(LoadReport {
        url: options.address.to_string(),
        connections: options.connections,
        seconds: options.duration.as_secs_f64(),
        new,
        replay,
        duplicates,
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
enum Phase {
    New,
    Replay,
    Pairs,
}

async fn run_phase(
    options: &LoadOptions,
    environment: &dyn Environment,
    template: RequestTemplate,
    next: &Cell<u64>,
    succeeded: Vec<u64>,
    kind: Phase,
) -> Result<(PhaseReport, Vec<u64>), Error> {
    let open = || LoadConnection::open(&options.address, environment);
    let connections = join_all((0..options.connections).map(|_| open())).await;
    let mut connections: Vec<LoadConnection<'_>> = connections
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(|error| Error::Unreachable {
            address: options.address.to_string(),
            reason: error.to_string(),
        })?;
    let begin = Instant::now();
    let schedule = Rc::new(Schedule {
        template,
        end: begin + options.duration,
        next: Cell::new(next.get()),
        succeeded: RefCell::new(succeeded),
    });
    let tallies = match kind {
        Phase::New => {
            let runs = connections
                .iter_mut()
                .map(|connection| new_keys(connection, &schedule));
            join_all(runs).await
        }
        Phase::Replay => {
            let runs = connections
                .iter_mut()
                .map(|connection| replays(connection, &schedule));
            join_all(runs).await
        }
        Phase::Pairs => {
            let pairs = connections.chunks_mut(2).filter_map(|pair| match pair {
                [one, two] => Some(pairs(one, two, &schedule)),
                _ => None,
            });
            join_all(pairs).await
        }
    };
    let took = begin.elapsed();
    next.set(schedule.next.get());
    let mut whole = Tally::default();
    for tally in tallies {
        whole.add(tally);
    }
    Ok((whole.into_report(took), schedule.succeeded.take()))
}

impl Schedule {
    fn number(&self) -> Option<u64> {
        if Instant::now() >= self.end {
            return None;
        }
        let number = self.next.get();
        self.next.set(number + 1);
        Some(number)
    }
}

async fn new_keys(connection: &mut LoadConnection<'_>, schedule: &Schedule) -> Tally {
    let mut tally = Tally::default();
    while let Some(number) = schedule.number() {
        let seen = connection
            .send(|bytes| schedule.template.write(number, bytes))
            .await;
        let success = seen.as_ref().is_ok_and(Sample::is_success);
        tally.count(&seen, false);
        let mut succeeded = schedule.succeeded.borrow_mut();
        if success && succeeded.len() < MOST_KEYS {
            succeeded.push(number);
        }
    }
    tally
}

async fn replays(connection: &mut LoadConnection<'_>, schedule: &Schedule) -> Tally {
    let mut tally = Tally::default();
    while let Some(turn) = schedule.number() {
        let number = {
            let succeeded = schedule.succeeded.borrow();
            let at = turn % succeeded.len().max(1) as u64;
            usize::try_from(at)
                .ok()
                .and_then(|at| succeeded.get(at).copied())
        };
        let Some(number) = number else { break };
        let seen = connection
            .send(|bytes| schedule.template.write(number, bytes))
            .await;
        tally.count(&seen, false);
    }
    tally
}

/// Sends the same request on two connections at once. A 409 to one of them is a good response.
async fn pairs(
    one: &mut LoadConnection<'_>,
    two: &mut LoadConnection<'_>,
    schedule: &Schedule,
) -> Tally {
    let mut tally = Tally::default();
    while let Some(number) = schedule.number() {
        let write = |bytes: &mut Vec<u8>| schedule.template.write(number, bytes);
        let (first, second) = join(one.send(write), two.send(write)).await;
        tally.count(&first, true);
        tally.count(&second, true);
    }
    tally
}
