//! Clients that retry, and sometimes misbehave.

mod erasure;
mod pending;
mod retries;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use semel_campaign_checker::history::{Call, Outcome, Peek, Sent};
use tokio::time::{Instant, sleep};

use self::pending::PendingCall;
use crate::answer::{CallResult, operation_id, record_answer};
use crate::http::{Connections, Endpoint, Reply, SendMode};
use crate::http2::{Http2, RESET_STREAM};
use crate::operation::{Leg, MalformedRequest, Operation, OperationIndex, Operations, Route};
use crate::plan::LEASE_MS;
use crate::random::Random;
use crate::record::Recorder;
use crate::tls::Tls;

/// How often a client tries before it leaves an operation for later.
const TRIES: u32 = 5;
/// The first pause between two tries; then twice as long each time.
const PAUSE: Duration = Duration::from_millis(60);
const LONGEST_PAUSE: Duration = Duration::from_millis(800);
/// How many requests at once are duplicates of each other, at most.
const MOST_DUPLICATES: u64 = 3;
/// A client that retries without pause meets the end of a lease before any sweeper.
const HAMMERS_ONE_IN: u64 = 8;
const BLOW: Duration = Duration::from_millis(70);
/// A little longer than two leases.
const HAMMERING: Duration = Duration::from_millis(2 * LEASE_MS + LEASE_MS / 4);
/// The code of an operation whose record is kept in any case, so that another body can be sent.
const UNKNOWN: &str = "idempotency_outcome_unknown";
/// When a client hangs up at the latest: after this time, and this many bytes of the answer.
const HANG_UP_MS: u64 = 200;
const HANG_UP_BYTES: usize = 400;
/// Faults of the provider for one payment.
const PROVIDER_FAULTS: [&str; 6] = [
    "decline",
    "reset_after_success",
    "reset_before",
    "error_500",
    "slow:700",
    "slow:4500",
];

/// What clients do in a phase. The numbers are "one in so many operations"; 0 is never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Traffic {
    pub(crate) leg: Leg,
    /// A client that disconnects, sends slowly, or sends a malformed request.
    pub(crate) badly: u64,
    /// A fault of the provider.
    pub(crate) provider: u64,
    /// How often each operation is replayed; 0 is now and then.
    pub(crate) again: u64,
    /// A retry of any finished operation, instead of a new one.
    pub(crate) earlier: u64,
    /// A finished operation's request under another spelling of its path, or for another host.
    pub(crate) disguised: u64,
    /// An operator erases the response of a finished operation; also a retry of such an operation.
    pub(crate) erased: u64,
}

/// The name and address of a gateway.
#[derive(Clone, Debug)]
pub(crate) struct Gateway {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    /// Where clients need TLS.
    pub(crate) tls: Option<Tls>,
}

impl Gateway {
    fn endpoint(self, is_http2: bool) -> Endpoint {
        Endpoint {
            address: self.address,
            tls: self.tls,
            is_http2,
        }
    }
}

/// State shared by all clients.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) recorder: Recorder,
    pub(crate) operations: Arc<Operations>,
    pub(crate) postgres: Vec<Gateway>,
    pub(crate) sqlite: Vec<Gateway>,
    /// Where operators reach the shared store.
    pub(crate) admin: SocketAddr,
}

/// A client.
#[derive(Debug)]
pub(crate) struct Client {
    shared: Shared,
    random: Random,
    connections: Connections,
    /// Whether it uses HTTP/2 with gateways that need TLS; every other client does.
    is_http2: bool,
}

impl Client {
    pub(crate) fn new(shared: Shared, mut random: Random) -> Self {
        Self {
            shared,
            is_http2: random.one_in(2),
            random,
            connections: Connections::default(),
        }
    }

    /// Makes payments until it is time to stop.
    pub(crate) async fn work(&mut self, traffic: Traffic, until: Instant) {
        let operations = Arc::clone(&self.shared.operations);
        while Instant::now() < until {
            let badly = self.random.one_in(traffic.badly);
            if badly && self.random.one_in(2) {
                self.send_malformed(traffic.leg).await;
            } else if self.random.one_in(traffic.earlier)
                && let Some(earlier) = operations.any_ended(traffic.leg, &mut self.random)
            {
                self.call(&earlier, None, SendMode::Normal).await;
            } else if self.random.one_in(traffic.erased)
                && let Some(erased) = operations.any_erased(&mut self.random)
            {
                self.ask_again(&erased).await;
            } else {
                self.pay(traffic, badly, until).await;
            }
        }
    }

    async fn pay(&mut self, traffic: Traffic, badly: bool, until: Instant) {
        let operations = Arc::clone(&self.shared.operations);
        let (operation, index) = operations.wanted(traffic.leg, &mut self.random);
        self.shared.recorder.operation(operation.line(false));
        let fault = self.random.one_in(traffic.provider);
        let fault = fault.then(|| *self.random.pick(&PROVIDER_FAULTS));
        let mut concluded = if badly {
            self.misbehave(&operation, fault).await
        } else if self.random.one_in(12) {
            self.call_together(&operation, fault).await
        } else {
            self.call(&operation, fault, SendMode::Normal).await
        };
        // Where the provider gets no key, a second execution is a second charge.
        let hammers = operation.route == Route::Strict && self.random.one_in(HAMMERS_ONE_IN);
        if concluded != Outcome::Ok && hammers {
            concluded = self.hammer(&operation, until).await;
        }
        if concluded != Outcome::Ok && Instant::now() < until {
            sleep(PAUSE).await;
            concluded = self.retry(&operation, until).await;
        }
        if concluded != Outcome::Ok {
            return;
        }
        operations.end(index);
        let again = match traffic.again {
            0 => u64::from(self.random.one_in(12)),
            times => times,
        };
        for _ in 0..again {
            self.call(&operation, None, SendMode::Normal).await;
        }
        if self.random.one_in(12) {
            self.misuse(&operation, "misuse").await;
        }
        if self.random.one_in(traffic.disguised) {
            self.disguise(&operation).await;
        }
        if self.random.one_in(traffic.erased) {
            self.erase(&operation, index).await;
        }
    }

    /// Another spelling or another host under a used key is another request.
    async fn disguise(&mut self, operation: &Operation) {
        let (name, request) = operation.disguised(&mut self.random);
        self.shared.recorder.fault(name, "client");
        let sent = Sent::OtherBody;
        self.send(operation, &request, SendMode::Normal, sent).await;
    }

    /// Retries without pause past the end of a lease.
    async fn hammer(&mut self, operation: &Operation, until: Instant) -> Outcome {
        self.shared.recorder.fault("hammer", "client");
        let until = until.min(Instant::now() + HAMMERING);
        loop {
            let concluded = self.call(operation, None, SendMode::Normal).await;
            if concluded == Outcome::Ok || Instant::now() >= until {
                return concluded;
            }
            sleep(BLOW).await;
        }
    }

    /// Retries until there is a final answer, or it is time to stop.
    pub(crate) async fn retry_until(
        &mut self,
        operation: &Operation,
        index: OperationIndex,
        until: Instant,
    ) {
        loop {
            let concluded = self.retry(operation, until).await;
            if concluded == Outcome::Ok {
                self.shared.operations.end(index);
                return;
            }
            if Instant::now() >= until {
                return;
            }
            sleep(PAUSE).await;
        }
    }

    /// Reads the status of an operation, as its tenant and as another one.
    pub(crate) async fn read_status(&mut self, operation: &Operation, id: &str) {
        for own in [true, false] {
            let gateway = self.gateway(operation.leg);
            let request = operation.peek(id, own);
            let endpoint = gateway.endpoint(self.is_http2);
            let reply = self.connections.call(&endpoint, &request, SendMode::Normal);
            if let Reply::Answer(answer) = reply.await {
                self.shared.recorder.peek(Peek {
                    at_ms: self.shared.recorder.now_ms(),
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
        manner: SendMode,
    ) -> Outcome {
        self.attempt(operation, fault, manner).await.outcome
    }

    /// One request of an operation.
    async fn attempt(
        &mut self,
        operation: &Operation,
        fault: Option<&str>,
        manner: SendMode,
    ) -> CallResult {
        let request = operation.request(fault, &mut self.random);
        let result = self.send(operation, &request, manner, Sent::Same).await;
        // Not before it is unknown or finished: a released reservation is forgotten, and the other
        // body might then be accepted as the first request.
        if result.code.as_deref() == Some(UNKNOWN)
            && result.status == Some(409)
            && self.random.one_in(4)
        {
            self.misuse(operation, "misuse_of_unknown").await;
        }
        result
    }

    async fn misuse(&mut self, operation: &Operation, name: &str) {
        self.shared.recorder.fault(name, "client");
        let request = operation.misuse(&mut self.random);
        let sent = Sent::OtherBody;
        self.send(operation, &request, SendMode::Normal, sent).await;
    }

    async fn send_malformed(&mut self, leg: Leg) {
        let operations = Arc::clone(&self.shared.operations);
        let operation = operations.refusable(leg, &mut self.random);
        self.shared.recorder.operation(operation.line(true));
        let how = *self.random.pick(&MalformedRequest::ALL);
        self.shared.recorder.fault(how.name(), "client");
        let request = operation.bad(how, &mut self.random);
        let sent = Sent::Malformed;
        self.send(&operation, &request, SendMode::Normal, sent)
            .await;
    }

    async fn misbehave(&mut self, operation: &Operation, fault: Option<&str>) -> Outcome {
        let length = operation.request(None, &mut self.random).len();
        let (name, manner) = match self.random.below(4) {
            0 | 1 => ("disconnect", SendMode::CutAt(self.random.index(length + 1))),
            2 => {
                let after = Duration::from_millis(self.random.below(HANG_UP_MS));
                let bytes = self.random.index(HANG_UP_BYTES);
                ("hang_up", SendMode::HangUp { after, bytes })
            }
            _ => ("slow_sender", SendMode::Slowly),
        };
        self.shared.recorder.fault(name, "client");
        self.call(operation, fault, manner).await
    }

    /// The same request several times at once, by different connections or streams.
    async fn call_together(&mut self, operation: &Operation, fault: Option<&str>) -> Outcome {
        let count = self.random.between(2, MOST_DUPLICATES);
        self.shared.recorder.fault("duplicates", "client");
        let mut others: Vec<Self> = (0..count)
            .map(|_| {
                let mut other = Self::new(self.shared.clone(), self.random.fork());
                other.connections = self.connections.beside();
                other
            })
            .collect();
        let calls = others
            .iter_mut()
            .map(|other| other.call(operation, fault, SendMode::Normal));
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
        manner: SendMode,
        sent: Sent,
    ) -> CallResult {
        let gateway = self.gateway(operation.leg);
        let recorder = self.shared.recorder.clone();
        let (began_ms, phase) = (recorder.now_ms(), recorder.phase());
        let name = gateway.name.clone();
        let endpoint = gateway.endpoint(self.is_http2 && Http2::can_carry(request));
        let call = Call {
            op: operation.number,
            began_ms,
            ended_ms: began_ms,
            phase,
            gateway: name,
            transport: endpoint.transport(),
            sent,
            outcome: Outcome::Indeterminate,
            status: None,
            code: None,
            replayed: false,
            body: None,
            headers: Vec::new(),
            why: Some("the client gave up".to_owned()),
        };
        let mut pending = PendingCall {
            recorder: recorder.clone(),
            call,
        };
        let reply = self.connections.call(&endpoint, request, manner).await;
        let call = &mut pending.call;
        call.why = None;
        let mut received = None;
        match reply {
            Reply::Answer(answer) => {
                record_answer(call, &answer);
                received = Some(answer);
            }
            Reply::Refused => {
                call.outcome = Outcome::Failed;
                call.why = Some("refused".to_owned());
            }
            Reply::Nothing(why) => {
                if why.starts_with(RESET_STREAM) {
                    recorder.fault("reset_stream", "client");
                }
                call.why = Some(why);
            }
        }
        let result = CallResult {
            outcome: call.outcome,
            status: call.status,
            code: call.code.clone(),
            id: call.body.as_deref().and_then(operation_id),
            answer: received,
        };
        drop(pending);
        result
    }

    fn gateway(&mut self, leg: Leg) -> Gateway {
        let gateways = match leg {
            Leg::Postgres => &self.shared.postgres,
            Leg::Sqlite => &self.shared.sqlite,
        };
        self.random.pick(gateways).clone()
    }
}
