//! Clients that retry, and sometimes behave badly.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_campaign_checker::history::{Call, Outcome, Peek, Sent};
use tokio::time::{Instant, sleep};

use crate::http::{Answer, Connections, Heard, Manner};
use crate::operation::{Bad, Leg, Operation, Operations, Place, Route};
use crate::plan::LEASE_MS;
use crate::random::Random;
use crate::record::Recorder;

/// How often a client asks before it leaves an operation for later.
const TRIES: u32 = 5;
/// The first pause between two tries; then twice as long each time.
const PAUSE: Duration = Duration::from_millis(60);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How many requests at once are duplicates of each other, at most.
const MOST_DUPLICATES: u64 = 3;
/// What differs between an answer and its replay, by what it is for. All else is repeated. The end
/// of the replay window is said by the first answer before it is recorded, and so may be a little
/// off; it is no part of the stored answer.
const OF_THE_MOMENT: [&str; 4] = [
    "date",
    "connection",
    "idempotent-replayed",
    "idempotency-key-expires",
];
/// Refusals after which nothing was executed by this call, though their status does not say so.
/// The last one is the application's own word.
const NOTHING_HAPPENED: [&str; 4] = [
    "idempotency_store_unavailable",
    "upstream_unreachable",
    "operation_not_executed",
    "provider_unreachable",
];
/// One who asks again and again is there when a lease ends, before any sweeper is.
const HAMMERS_ONE_IN: u64 = 8;
const BLOW: Duration = Duration::from_millis(70);
/// A little longer than two leases.
const HAMMERING: Duration = Duration::from_millis(2 * LEASE_MS + LEASE_MS / 4);
/// What an operation is that is kept whatever happens: another body may be tried on it.
const UNKNOWN: &str = "idempotency_outcome_unknown";
/// How long one who hangs up listens at most, and to how much: the length of most answers.
const LISTENS_MS: u64 = 200;
const LISTENS_BYTES: usize = 400;
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
    /// How often the answer is asked for again, every time; 0 is once in a while.
    pub(crate) again: u64,
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
        // Where the provider is given no key, a second execution shows as a second charge.
        let hammers = operation.route == Route::Strict && self.random.one_in(HAMMERS_ONE_IN);
        if concluded != Outcome::Ok && hammers {
            concluded = self.hammer(&operation, until).await;
        }
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
        let again = match traffic.again {
            0 => u64::from(self.random.one_in(12)),
            times => times,
        };
        for _ in 0..again {
            self.call(&operation, None, Manner::Well).await;
        }
        if self.random.one_in(12) {
            self.misuse(&operation, "misuse").await;
        }
    }

    /// Asks without pause past the end of a lease.
    async fn hammer(&mut self, operation: &Operation, until: Instant) -> Outcome {
        self.world.recorder.fault("hammer", "client");
        let until = until.min(Instant::now() + HAMMERING);
        loop {
            let concluded = self.call(operation, None, Manner::Well).await;
            if concluded == Outcome::Ok || Instant::now() >= until {
                return concluded;
            }
            sleep(BLOW).await;
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

    /// Looks at the operation's state, as its own caller and as another one.
    pub(crate) async fn peek(&mut self, operation: &Operation, id: &str) {
        for own in [true, false] {
            let gateway = self.gateway(operation.leg);
            let request = operation.peek(id, own);
            let heard = self
                .connections
                .call(gateway.address, &request, Manner::Well);
            if let Heard::Answer(answer) = heard.await {
                self.world.recorder.peek(Peek {
                    at_ms: self.world.recorder.now_ms(),
                    op: operation.number,
                    own,
                    status: answer.status,
                });
            }
        }
    }

    async fn call(
        &mut self,
        operation: &Operation,
        fault: Option<&str>,
        manner: Manner,
    ) -> Outcome {
        let request = operation.request(fault, &mut self.random);
        let told = self.send(operation, &request, manner, Sent::Same).await;
        // Before it is unknown or ended the other request might be the first to be taken, since a
        // reservation of which nothing came is forgotten.
        if told.code.as_deref() == Some(UNKNOWN)
            && told.status == Some(409)
            && self.random.one_in(4)
        {
            self.misuse(operation, "misuse_of_unknown").await;
        }
        told.outcome
    }

    async fn misuse(&mut self, operation: &Operation, name: &str) {
        self.world.recorder.fault(name, "client");
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
            2 => {
                let after = Duration::from_millis(self.random.below(LISTENS_MS));
                let bytes = self.random.index(LISTENS_BYTES);
                ("hang_up", Manner::HangUp { after, bytes })
            }
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
    ) -> Told {
        let gateway = self.gateway(operation.leg);
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
            headers: Vec::new(),
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
        let told = Told {
            outcome: call.outcome,
            status: call.status,
            code: call.code.clone(),
        };
        recorder.call(call);
        told
    }

    fn gateway(&mut self, leg: Leg) -> Gateway {
        let gateways = match leg {
            Leg::Postgres => &self.world.postgres,
            Leg::Sqlite => &self.world.sqlite,
        };
        self.random.pick(gateways).clone()
    }
}

/// What a call was told, as far as it decides what comes next.
struct Told {
    outcome: Outcome,
    status: Option<u16>,
    code: Option<String>,
}

/// What an answer says of its call.
fn note(call: &mut Call, answer: &Answer) {
    call.status = Some(answer.status);
    call.body = Some(String::from_utf8_lossy(&answer.body).into_owned());
    call.replayed = answer.header("idempotent-replayed") == Some("true");
    if matches!(answer.status, 201 | 402) {
        call.outcome = Outcome::Ok;
        let repeated = answer.headers.iter();
        let repeated = repeated.filter(|(name, _)| !OF_THE_MOMENT.contains(&name.as_str()));
        call.headers = repeated.cloned().collect();
        // Only lines of one name have an order that means something; a stable sort keeps it.
        call.headers.sort_by(|(one, _), (other, _)| one.cmp(other));
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
