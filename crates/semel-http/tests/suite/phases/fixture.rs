//! An application whose rows are in memory, committed together with the records of the memory
//! store, and a provider that counts its effects.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use axum::routing::post;
use axum::{Extension, Router};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use semel_core::store::Error;
use semel_core::transaction::{Conclude, Finished, Finishing, TransactionWrite};
use semel_core::{Fence, Held, Memory, Record, Status, Store as _, Transaction};
use semel_http::{Downstream, Layer, Operation, Outcome, ResumeJob, Stopped, tenant};
use semel_testkit::{Faulty, ManualClock};
use tokio::sync::Notify;
use tower::ServiceExt as _;

pub type Store = Faulty<Memory>;

pub const LEASE: Duration = Duration::from_secs(30);

/// The database, the provider and the clock: what survives a crash.
#[derive(Clone)]
pub struct Fixture {
    pub clock: ManualClock,
    pub store: Store,
    pub rows: Arc<Mutex<Vec<String>>>,
    pub provider: Arc<Provider>,
}

/// Another service, which counts its effects.
#[derive(Default)]
pub struct Provider {
    /// Effects by key.
    pub effects: Mutex<HashMap<String, u32>>,
    /// Whether the provider ignores keys.
    pub ignores_keys: bool,
    pub calls: AtomicUsize,
    /// How the next calls end.
    pub endings: Mutex<Vec<CallEnding>>,
}

/// How a call ends.
#[derive(Clone, Copy, Debug)]
pub enum CallEnding {
    /// The effect happens, and the reply arrives.
    Succeeds,
    /// The effect happens, and the reply is lost.
    Unclear,
    /// The call is not sent, and the caller knows it.
    NotSent,
    /// The call does not arrive, and the caller does not know it.
    Lost,
}

/// One run of the process.
#[derive(Clone)]
pub struct Process {
    pub fixture: Fixture,
    crash: CrashPoint,
    pub commit: CommitEnding,
    pub version: HandlerVersion,
    pub downstream: Downstream,
}

/// The step at which the process dies, counted from 1.
#[derive(Clone, Default)]
struct CrashPoint {
    at: usize,
    steps: Arc<AtomicUsize>,
    dead: Arc<Notify>,
    /// If the process only pauses: notified when it continues.
    wakes: Option<Arc<Notify>>,
}

/// How the application's transactions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitEnding {
    Succeeds,
    /// Rolled back.
    Fails(&'static str),
    /// Committed, and the reply is lost.
    Unanswered(&'static str),
    /// Rolled back, and the reply is lost.
    UnansweredRollback(&'static str),
}

/// Which version of the handler runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerVersion {
    Ordinary,
    Renamed,
    Shortened,
    Doubled,
    RenamedCall,
    NoPhases,
    /// The charge comes before the row.
    CallFirst,
}

impl Fixture {
    pub fn new() -> Self {
        let clock = ManualClock::default();
        Self {
            store: Faulty::new(Memory::new(Arc::new(clock.clone()))),
            clock,
            rows: Arc::default(),
            provider: Arc::default(),
        }
    }

    pub fn process(&self) -> Process {
        Process {
            fixture: self.clone(),
            crash: CrashPoint::default(),
            commit: CommitEnding::Succeeds,
            version: HandlerVersion::Ordinary,
            downstream: Downstream::Idempotent,
        }
    }

    pub fn expire_lease(&self) {
        self.clock.advance(LEASE + Duration::from_secs(1));
    }

    pub fn rows(&self) -> Vec<String> {
        self.rows.lock().unwrap().clone()
    }

    pub fn charges(&self) -> u32 {
        self.provider.effects.lock().unwrap().values().sum()
    }

    pub fn endings(&self, endings: &[CallEnding]) {
        *self.provider.endings.lock().unwrap() = endings.iter().rev().copied().collect();
    }

    pub fn record(&self) -> Record {
        let runtime = runtime();
        let listed = runtime.block_on(self.store.list(semel_core::store::Query::default()));
        let id = listed.unwrap().operations[0].fence.id;
        runtime.block_on(self.store.find(id)).unwrap().unwrap()
    }

    pub fn status(&self) -> Status {
        self.record().state.status()
    }

    /// The rows, the charge and the record of one payment.
    #[track_caller]
    pub fn assert_paid_once(&self, case: &str) {
        assert_eq!(self.rows(), ["opened", "settled"], "{case}");
        assert_eq!(self.charges(), 1, "{case}");
        assert_eq!(self.status(), Status::Completed, "{case}");
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
}

impl Process {
    pub fn crashing(mut self, at: usize) -> Self {
        self.crash.at = at;
        self
    }

    pub fn pausing(self, at: usize) -> Self {
        let mut process = self.crashing(at);
        process.crash.wakes = Some(Arc::default());
        process
    }

    pub fn with(self, downstream: Downstream) -> Self {
        Self { downstream, ..self }
    }

    pub fn with_version(self, version: HandlerVersion) -> Self {
        Self { version, ..self }
    }

    pub fn committing(self, commit: CommitEnding) -> Self {
        Self { commit, ..self }
    }

    /// How many steps the process took.
    pub fn steps(&self) -> usize {
        self.crash.steps.load(Ordering::SeqCst)
    }

    pub fn layer(&self) -> Layer<Store> {
        let version = self.version;
        Layer::new(self.fixture.store.clone())
            .tenant(tenant::only_one())
            .route("POST /payments", |route| {
                let route = route.operation("pay").lease(LEASE);
                if version == HandlerVersion::NoPhases {
                    route
                } else {
                    route.phases()
                }
            })
    }

    /// Sends the request. `None` if the process died.
    pub fn send(&self) -> Option<(StatusCode, String)> {
        let layer = self.layer();
        runtime().block_on(async {
            tokio::select! {
                answer = self.request(&layer) => Some(answer),
                () = self.stopped() => None,
            }
        })
    }

    pub async fn request(&self, layer: &Layer<Store>) -> (StatusCode, String) {
        let app = Router::new()
            .route("/payments", post(handler))
            .layer(Extension(self.clone()))
            .layer(layer.clone());
        let request = Request::post("/payments").header("idempotency-key", "key-1");
        let request = request.body(Body::from("1000")).unwrap();
        let answer = app.oneshot(request).await;
        let (head, body) = answer
            .unwrap_or_else(|never: Infallible| match never {})
            .into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (head.status, String::from_utf8(body.to_vec()).unwrap())
    }

    /// Waits until the process dies or pauses.
    pub async fn stopped(&self) {
        self.crash.dead.notified().await;
    }

    /// Lets a paused process continue.
    pub fn wake(&self) {
        self.crash.wakes.as_ref().unwrap().notify_one();
    }

    /// Resumes abandoned records, and returns how many there were.
    pub fn resume(&self) -> usize {
        let layer = self.layer();
        let process = self.clone();
        let job: ResumeJob<Store> = layer
            .resume_job("pay", move |operation, amount| {
                pay(operation, process.clone(), amount)
            })
            .unwrap();
        runtime().block_on(async {
            tokio::select! {
                done = job.resume_once() => done.unwrap(),
                () = self.stopped() => 1,
            }
        })
    }

    /// A step where the process may die.
    async fn step(&self) {
        let CrashPoint {
            at,
            steps,
            dead,
            wakes,
        } = &self.crash;
        if steps.fetch_add(1, Ordering::SeqCst) + 1 == *at {
            dead.notify_one();
            match wakes {
                Some(wakes) => wakes.notified().await,
                None => pending().await,
            }
        }
    }

    async fn row(self, row: &'static str, amount: u64) -> Result<(RowTransaction, u64), String> {
        self.step().await;
        let rows = RowTransaction { process: self, row };
        Ok((rows, amount))
    }

    async fn charge(self, key: String) -> Result<u32, Outcome> {
        self.step().await;
        let provider = &self.fixture.provider;
        provider.calls.fetch_add(1, Ordering::SeqCst);
        let ending = provider.endings.lock().unwrap().pop();
        let ending = ending.unwrap_or(CallEnding::Succeeds);
        if let CallEnding::NotSent = ending {
            return Err(Outcome::not_executed("refused"));
        }
        if let CallEnding::Succeeds | CallEnding::Unclear = ending {
            let mut effects = provider.effects.lock().unwrap();
            let count = effects.entry(key).or_default();
            if *count == 0 || provider.ignores_keys {
                *count += 1;
            }
        }
        self.step().await;
        match ending {
            CallEnding::Succeeds => Ok(42),
            CallEnding::Unclear | CallEnding::Lost => Err(Outcome::unknown("timed_out")),
            CallEnding::NotSent => Err(Outcome::not_executed("refused")),
        }
    }
}

async fn handler(
    operation: Operation,
    Extension(process): Extension<Process>,
    amount: String,
) -> Response {
    let amount: u64 = amount.parse().unwrap();
    match pay(operation, process, amount).await {
        Ok(response) => response,
        Err(stopped) => stopped.into_response(),
    }
}

/// All versions of the handler.
async fn pay(operation: Operation, process: Process, amount: u64) -> Result<Response, Stopped> {
    let version = process.version;
    // A retry may differ in fields that its fingerprint ignores.
    let amount = amount + u64::from(operation.attempt());
    let (mut operation, amount) = operation.begin(amount)?;
    process.step().await;
    let opened = match version {
        HandlerVersion::Renamed => "created",
        _ => "opened",
    };
    if version == HandlerVersion::CallFirst {
        let _: u32 = operation
            .call("charged first", process.downstream, |key| {
                process.clone().charge(key)
            })
            .await?;
    }
    let opened_for: u64 = operation
        .phase(opened, process.clone().row("opened", amount))
        .await?;
    assert_eq!(opened_for, amount, "what was opened is what is settled");
    process.step().await;
    if version == HandlerVersion::Doubled {
        let _: u64 = operation
            .phase("opened", process.clone().row("doubled", amount))
            .await?;
    }
    if version != HandlerVersion::Shortened && version != HandlerVersion::CallFirst {
        let charged = match version {
            HandlerVersion::RenamedCall => "paid",
            _ => "charged",
        };
        let charge: u32 = operation
            .call(charged, process.downstream, |key| {
                process.clone().charge(key)
            })
            .await?;
        assert_eq!(charge, 42);
    }
    process.step().await;
    let settled = async {
        let (rows, _) = process.clone().row("settled", amount).await?;
        Ok::<_, String>((rows, (StatusCode::CREATED, "paid")))
    };
    operation.finish(settled).await
}

/// A transaction that writes one row.
struct RowTransaction {
    process: Process,
    row: &'static str,
}

impl RowTransaction {
    async fn commit(&self, fence: Fence, write: TransactionWrite) -> Result<Finished, Error> {
        let store = self.process.fixture.store.inner();
        let held = match write {
            TransactionWrite::Advance(point) => store.advance(fence, point).await?,
            TransactionWrite::Complete(completion) => store.complete(fence, completion).await?,
        };
        if held == Held::Applied {
            self.process
                .fixture
                .rows
                .lock()
                .unwrap()
                .push(self.row.into());
        }
        Ok(Finished::Held(held))
    }
}

impl Transaction for RowTransaction {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        Box::pin(async move {
            self.process.step().await;
            let Some(write) = conclude(None) else {
                return Ok(Finished::RolledBack);
            };
            let unanswered = || Error::Ambiguous {
                reason: "planned".into(),
                source: None,
            };
            let ended = match self.process.commit {
                CommitEnding::Fails(row) if row == self.row => Err(Error::Unavailable {
                    reason: "planned".into(),
                    source: None,
                }),
                CommitEnding::UnansweredRollback(row) if row == self.row => Err(unanswered()),
                CommitEnding::Unanswered(row) if row == self.row => {
                    self.commit(fence, write).await?;
                    Err(unanswered())
                }
                CommitEnding::Succeeds
                | CommitEnding::Fails(_)
                | CommitEnding::Unanswered(_)
                | CommitEnding::UnansweredRollback(_) => self.commit(fence, write).await,
            };
            self.process.step().await;
            ended
        })
    }
}
