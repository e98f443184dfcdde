//! Clients that retry, and sometimes behave badly.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_campaign_checker::history::{Call, Outcome, Sent};
use tokio::time::{Instant, sleep};

use crate::http::{Answer, Connections, Heard, Manner};
use crate::operation::{Bad, Leg, Operation, Operations, Place};
use crate::random::Random;
use crate::record::Recorder;

/// How often a client asks before it leaves an operation for later.
const TRIES: u32 = 5;
/// The first pause between two tries; then twice as long each time.
const PAUSE: Duration = Duration::from_millis(60);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How many requests at once are duplicates of each other, at most.
const MOST_DUPLICATES: u64 = 3;
/// What answers must repeat on every replay, beside their bodies.
const REPEATED: [&str; 2] = ["content-type", "location"];
/// Refusals after which nothing was executed by this call, though their status does not say so.
const NOTHING_HAPPENED: [&str; 2] = ["idempotency_store_unavailable", "upstream_unreachable"];
/// What the provider does to one payment.
const PROVIDER_FAULTS: [&str; 6] = [
    "decline",
    "reset_after_success",
    "reset_before",
    "error_500",
    "slow:700",
    "slow:4500",
];

/// What clients do in a phase. One in so many operations; 0 is never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) leg: Leg,
    /// A client that disconnects, sends slowly, or sends nonsense.
    pub(crate) badly: u64,
    /// A provider that breaks.
    pub(crate) provider: u64,
}

/// A gateway, as its clients know it.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
}

/// What all clients share.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) recorder: Recorder,
    pub(crate) operations: Arc<Operations>,
    pub(crate) postgres: Vec<Gateway>,
    pub(crate) sqlite: Vec<Gateway>,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    world: World,
    random: Random,
    connections: Connections,
}

impl Client {
    pub(crate) fn new(world: World, random: Random) -> Self {
        Self {
            world,
            random,
            connections: Connections::default(),
        }
    }

    /// Makes payments until it is time to stop.
    pub(crate) async fn work(&mut self, traffic: Traffic, until: Instant) {
        while Instant::now() < until {
            let badly = self.random.one_in(traffic.badly);
            if badly && self.random.one_in(2) {
                self.send_nonsense(traffic.leg).await;
            } else {
                self.pay(traffic, badly, until).await;
            }
        }
    }

    async fn pay(&mut self, traffic: Traffic, badly: bool, until: Instant) {
        let operations = Arc::clone(&self.world.operations);
        let (operation, place) = operations.wanted(traffic.leg, &mut self.random);
        self.world.recorder.operation(operation.line(false));
        let fault = self.random.one_in(traffic.provider);
        let fault = fault.then(|| *self.random.pick(&PROVIDER_FAULTS));
        let mut concluded = if badly {
            self.call_badly(&operation, fault).await
        } else if self.random.one_in(12) {
            self.call_together(&operation, fault).await
        } else {
            self.call(&operation, fault, Manner::Well).await
        };
        let mut pause = PAUSE;
        for _ in 1..TRIES {
            if concluded == Outcome::Ok || Instant::now() >= until {
                break;
            }
            let more = pause * u32::try_from(self.random.below(100)).unwrap_or_default() / 200;
            sleep(pause + more).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            concluded = self.call(&operation, None, Manner::Well).await;
        }
        if concluded != Outcome::Ok {
            return;
        }
        operations.end(place);
        if self.random.one_in(12) {
            self.call(&operation, None, Manner::Well).await;
        }
        // Only after the end: before, the other request might be the first to be taken, since a
        // reservation of which nothing came is forgotten.
        if self.random.one_in(12) {
            self.misuse(&operation).await;
        }
    }

    /// Asks until there is a final answer, or it is time to stop. Says whether there was one.
    pub(crate) async fn persist(&mut self, operation: &Operation, place: Place, until: Instant) {
        let mut pause = PAUSE;
        loop {
            let concluded = self.call(operation, None, Manner::Well).await;
            if concluded == Outcome::Ok {
                self.world.operations.end(place);
                return;
            }
            if Instant::now() >= until {
                return;
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Asks once more, after the end.
    pub(crate) async fn replay(&mut self, operation: &Operation) {
        self.call(operation, None, Manner::Well).await;
    }

    async fn call(
        &mut self,
        operation: &Operation,
        fault: Option<&str>,
        manner: Manner,
    ) -> Outcome {
        let request = operation.request(fault, &mut self.random);
        self.send(operation, &request, manner, Sent::Same).await
    }

    async fn misuse(&mut self, operation: &Operation) {
        self.world.recorder.fault("misuse", "client");
        let request = operation.misuse(&mut self.random);
        let sent = Sent::OtherBody;
        self.send(operation, &request, Manner::Well, sent).await;
    }

    async fn send_nonsense(&mut self, leg: Leg) {
        let operations = Arc::clone(&self.world.operations);
        let operation = operations.refusable(leg, &mut self.random);
        self.world.recorder.operation(operation.line(true));
        let how = *self.random.pick(&Bad::ALL);
        self.world.recorder.fault(how.name(), "client");
        let request = operation.bad(how, &mut self.random);
        let sent = Sent::Malformed;
        self.send(&operation, &request, Manner::Well, sent).await;
    }

    async fn call_badly(&mut self, operation: &Operation, fault: Option<&str>) -> Outcome {
        let length = operation.request(None, &mut self.random).len();
        let (name, manner) = match self.random.below(4) {
            0 | 1 => ("disconnect", Manner::CutAt(self.random.index(length + 1))),
            2 => ("hang_up", Manner::HangUp),
            _ => ("slow_sender", Manner::Slowly),
        };
        self.world.recorder.fault(name, "client");
        self.call(operation, fault, manner).await
    }

    /// The same request several times at once, by different connections.
    async fn call_together(&mut self, operation: &Operation, fault: Option<&str>) -> Outcome {
        let count = self.random.between(2, MOST_DUPLICATES);
        self.world.recorder.fault("duplicates", "client");
        let mut others: Vec<Self> = (0..count)
            .map(|_| Self::new(self.world.clone(), self.random.fork()))
            .collect();
        let calls = others
            .iter_mut()
            .map(|other| other.call(operation, fault, Manner::Well));
        let concluded = join_all(calls).await;
        if concluded.contains(&Outcome::Ok) {
            Outcome::Ok
        } else {
            Outcome::Indeterminate
        }
    }

    async fn send(
        &mut self,
        operation: &Operation,
        request: &[u8],
        manner: Manner,
        sent: Sent,
    ) -> Outcome {
        let gateways = match operation.leg {
            Leg::Postgres => &self.world.postgres,
            Leg::Sqlite => &self.world.sqlite,
        };
        let gateway = self.random.pick(gateways).clone();
        let recorder = self.world.recorder.clone();
        let (began_ms, phase) = (recorder.now_ms(), recorder.phase());
        let heard = self
            .connections
            .call(gateway.address, request, manner)
            .await;
        let mut call = Call {
            op: operation.number,
            began_ms,
            ended_ms: recorder.now_ms(),
            phase,
            gateway: gateway.name,
            sent,
            outcome: Outcome::Indeterminate,
            status: None,
            code: None,
            replayed: false,
            body: None,
            headers: std::collections::BTreeMap::new(),
            why: None,
        };
        match heard {
            Heard::Answer(answer) => note(&mut call, &answer),
            Heard::Refused => {
                call.outcome = Outcome::Failed;
                call.why = Some("refused".to_owned());
            }
            Heard::Nothing(why) => call.why = Some(why),
        }
        let outcome = call.outcome;
        recorder.call(call);
        outcome
    }
}

/// What an answer says of its call.
fn note(call: &mut Call, answer: &Answer) {
    call.status = Some(answer.status);
    call.replayed = answer
        .headers
        .get("idempotent-replayed")
        .map(String::as_str)
        == Some("true");
    if matches!(answer.status, 201 | 402) {
        call.outcome = Outcome::Ok;
        call.body = Some(String::from_utf8_lossy(&answer.body).into_owned());
        let repeated = REPEATED.iter().filter_map(|name| {
            let value = answer.headers.get(*name)?;
            Some(((*name).to_owned(), value.clone()))
        });
        call.headers = repeated.collect();
        return;
    }
    let problem: Option<serde_json::Value> = serde_json::from_slice(&answer.body).ok();
    call.code = problem.and_then(|problem| Some(problem.get("code")?.as_str()?.to_owned()));
    let code = call.code.as_deref().unwrap_or_default();
    let refused = matches!(
        answer.status,
        400 | 404 | 405 | 410 | 411 | 413 | 414 | 415 | 422 | 431
    );
    if refused || NOTHING_HAPPENED.contains(&code) {
        call.outcome = Outcome::Failed;
    }
}
