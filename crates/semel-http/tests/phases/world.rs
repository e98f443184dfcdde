//! A shop without a database: its rows are in memory, in one commit with the memory store's
//! records, and its provider counts effects by itself.

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
use semel_core::transaction::{Conclude, Finished, Finishing, Word};
use semel_core::{Fence, Held, Inspect as _, Memory, Record, Status, Store as _, Transaction};
use semel_http::{Completer, Downstream, Layer, Operation, Outcome, Stopped, tenant};
use semel_testkit::{Faulty, ManualClock};
use tokio::sync::Notify;
use tower::ServiceExt as _;

pub type Store = Faulty<Memory>;

/// How long an owner is believed to be alive.
pub const LEASE: Duration = Duration::from_secs(30);

/// The database, the provider and the clock: what survives a crash.
#[derive(Clone)]
pub struct World {
    pub clock: ManualClock,
    pub store: Store,
    pub rows: Arc<Mutex<Vec<String>>>,
    pub provider: Arc<Provider>,
}

/// Somebody else, who counts what happens there.
#[derive(Default)]
pub struct Provider {
    /// Effects by key.
    pub effects: Mutex<HashMap<String, u32>>,
    /// Whether it takes notice of keys.
    pub forgetful: bool,
    pub calls: AtomicUsize,
    /// How the next calls end.
    pub endings: Mutex<Vec<Call>>,
}

/// How a call ends.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Well.
    Works,
    /// The effect is there, and the answer is lost.
    Unclear,
    /// It never arrives.
    NotSent,
    /// Neither.
    Lost,
}

/// One life of the process.
#[derive(Clone)]
pub struct Process {
    pub world: World,
    crash: Crash,
    pub commit: Commit,
    pub story: Story,
    pub downstream: Downstream,
}

/// Where it dies: at the n-th step, counted from 1.
#[derive(Clone, Default)]
struct Crash {
    at: usize,
    steps: Arc<AtomicUsize>,
    dead: Arc<Notify>,
    /// Where it is only paused: when it goes on.
    wakes: Option<Arc<Notify>>,
}

/// How the shop's transactions end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Commit {
    Works,
    /// Rolled back.
    Fails(&'static str),
    /// It is there, and the answer is lost.
    Unheard(&'static str),
    /// It is not there, and the answer is lost.
    UnheardRollback(&'static str),
}

/// Which version of the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    Ordinary,
    Renamed,
    Shortened,
    Doubled,
    RenamedCall,
    NoPhases,
    /// The charge comes before the row.
    CallFirst,
}

impl World {
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
            world: self.clone(),
            crash: Crash::default(),
            commit: Commit::Works,
            story: Story::Ordinary,
            downstream: Downstream::Idempotent,
        }
    }

    pub fn lease_over(&self) {
        self.clock.advance(LEASE + Duration::from_secs(1));
    }

    pub fn rows(&self) -> Vec<String> {
        self.rows.lock().unwrap().clone()
    }

    pub fn charges(&self) -> u32 {
        self.provider.effects.lock().unwrap().values().sum()
    }

    pub fn endings(&self, endings: &[Call]) {
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

    /// The one good end.
    #[track_caller]
    pub fn is_paid_once(&self, case: &str) {
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

    pub fn telling(self, story: Story) -> Self {
        Self { story, ..self }
    }

    pub fn committing(self, commit: Commit) -> Self {
        Self { commit, ..self }
    }

    /// How many steps it took.
    pub fn steps(&self) -> usize {
        self.crash.steps.load(Ordering::SeqCst)
    }

    pub fn layer(&self) -> Layer<Store> {
        let story = self.story;
        Layer::new(self.world.store.clone())
            .tenant(tenant::only_one())
            .route("POST /payments", |route| {
                let route = route.operation("pay").lease(LEASE);
                if story == Story::NoPhases {
                    route
                } else {
                    route.phases()
                }
            })
    }

    /// Sends the one request. `None` where the process died.
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

    /// It has come to where it dies, or pauses.
    pub async fn stopped(&self) {
        self.crash.dead.notified().await;
    }

    /// Lets a paused process go on.
    pub fn wake(&self) {
        self.crash.wakes.as_ref().unwrap().notify_one();
    }

    /// Finishes what was abandoned; says how much was.
    pub fn complete(&self) -> usize {
        let layer = self.layer();
        let process = self.clone();
        let completer: Completer<Store> = layer
            .completer("pay", move |operation, amount| {
                pay(operation, process.clone(), amount)
            })
            .unwrap();
        runtime().block_on(async {
            tokio::select! {
                done = completer.complete_once() => done.unwrap(),
                () = self.stopped() => 1,
            }
        })
    }

    /// A place where the process may die.
    async fn step(&self) {
        let Crash {
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

    async fn row(self, row: &'static str, amount: u64) -> Result<(Rows, u64), String> {
        self.step().await;
        let rows = Rows { process: self, row };
        Ok((rows, amount))
    }

    async fn charge(self, key: String) -> Result<u32, Outcome> {
        self.step().await;
        let provider = &self.world.provider;
        provider.calls.fetch_add(1, Ordering::SeqCst);
        let ending = provider.endings.lock().unwrap().pop();
        let ending = ending.unwrap_or(Call::Works);
        if let Call::NotSent = ending {
            return Err(Outcome::not_executed("refused"));
        }
        if let Call::Works | Call::Unclear = ending {
            let mut effects = provider.effects.lock().unwrap();
            let count = effects.entry(key).or_default();
            if *count == 0 || provider.forgetful {
                *count += 1;
            }
        }
        self.step().await;
        match ending {
            Call::Works => Ok(42),
            Call::Unclear | Call::Lost => Err(Outcome::unknown("timed_out")),
            Call::NotSent => Err(Outcome::not_executed("refused")),
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

/// The story, in all its versions.
async fn pay(operation: Operation, process: Process, amount: u64) -> Result<Response, Stopped> {
    let story = process.story;
    // A retry that differs in what its fingerprint leaves out.
    let amount = amount + u64::from(operation.attempt());
    let (mut operation, amount) = operation.begin(amount)?;
    process.step().await;
    let opened = match story {
        Story::Renamed => "created",
        _ => "opened",
    };
    if story == Story::CallFirst {
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
    if story == Story::Doubled {
        let _: u64 = operation
            .phase("opened", process.clone().row("doubled", amount))
            .await?;
    }
    if story != Story::Shortened && story != Story::CallFirst {
        let charged = match story {
            Story::RenamedCall => "paid",
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
struct Rows {
    process: Process,
    row: &'static str,
}

impl Rows {
    async fn commit(&self, fence: Fence, word: Word) -> Result<Finished, Error> {
        let store = self.process.world.store.inner();
        let held = match word {
            Word::Advance(point) => store.advance(fence, point).await?,
            Word::Complete(completion) => store.complete(fence, completion).await?,
        };
        if held == Held::Applied {
            self.process
                .world
                .rows
                .lock()
                .unwrap()
                .push(self.row.into());
        }
        Ok(Finished::Held(held))
    }
}

impl Transaction for Rows {
    fn finish(self: Box<Self>, fence: Fence, conclude: Conclude) -> Finishing {
        Box::pin(async move {
            self.process.step().await;
            let Some(word) = conclude(None) else {
                return Ok(Finished::RolledBack);
            };
            let unheard = || Error::Ambiguous {
                reason: "planned".into(),
                source: None,
            };
            let ended = match self.process.commit {
                Commit::Fails(row) if row == self.row => Err(Error::Unavailable {
                    reason: "planned".into(),
                    source: None,
                }),
                Commit::UnheardRollback(row) if row == self.row => Err(unheard()),
                Commit::Unheard(row) if row == self.row => {
                    self.commit(fence, word).await?;
                    Err(unheard())
                }
                Commit::Works
                | Commit::Fails(_)
                | Commit::Unheard(_)
                | Commit::UnheardRollback(_) => self.commit(fence, word).await,
            };
            self.process.step().await;
            ended
        })
    }
}
