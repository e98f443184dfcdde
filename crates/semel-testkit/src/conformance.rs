//! The rules of the state machine as a suite that any store runs.
//!
//! Every case is an `async fn` over a [`Fixture`] whose name states the rule, so that a
//! failing test says what is broken. One list feeds both
//! [`conformance_suite!`](crate::conformance_suite), which makes a test of every case, and
//! [`failures`], which says which cases a store breaks: a test that removes a guard from a
//! store wants at least one.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_core::{Figures, Inbox, Inspect, Maintain, Store};
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

pub use fixture::{Fixture, together};

use crate::ManualClock;

pub(crate) mod fixture;
mod list;

pub mod abandoned;
pub mod census;
pub mod claims;
pub mod content;
pub mod evidence;
pub mod fences;
pub mod figures;
pub mod history;
pub mod inbox;
pub mod instants;
pub mod keys;
pub mod listing;
pub mod out_of_band;
pub mod outbox;
pub mod races;
pub mod replays;
pub mod reserving;
pub mod resources;
pub mod retention;
pub mod standing;
pub mod table;
pub mod verdicts;

/// Longest that one case may take. No case waits for time, so only a store that hangs gets
/// here; generous, because the suite also runs on machines that do something else.
const CASE_LIMIT: Duration = Duration::from_mins(1);

/// How many cases [`failures`] runs at once: a store on a disk waits more than it works.
const CASES_AT_ONCE: usize = 8;

/// A whole store: what the suite can run.
pub trait Subject: Store + Maintain + Inspect + Inbox + Figures {}

impl<S: Store + Maintain + Inspect + Inbox + Figures> Subject for S {}

/// How to get at a store of one kind.
pub trait Harness: Send + Sync + 'static {
    /// The store.
    type Store: Subject;

    /// An *empty* store, the clock it judges time by, and what must outlive it.
    fn fresh(&self) -> impl Future<Output = Fixture<Self::Store>> + Send;

    /// How hard the races try.
    fn scale(&self) -> Scale {
        Scale::default()
    }
}

/// How hard the races try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Tasks that want the same thing at once.
    pub tasks: usize,
    /// How often each race is run.
    pub rounds: usize,
    /// Keys in the race over many keys.
    pub keys: usize,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            tasks: 32,
            rounds: 8,
            keys: 500,
        }
    }
}

impl Scale {
    /// Small enough to run the suite once per removed guard.
    pub const QUICK: Self = Self {
        tasks: 16,
        rounds: 2,
        keys: 50,
    };
}

/// A case that a store broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rule, as `module::case`.
    pub case: &'static str,
    /// What was wrong.
    pub reason: String,
}

/// One case, ready to run on a harness.
pub struct Case<H> {
    /// The rule, as `module::case`.
    pub name: &'static str,
    run: Box<dyn FnOnce(Arc<H>) -> Running + Send>,
}

type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs one case on a fresh store: what [`conformance_suite!`](crate::conformance_suite)
/// makes a test of.
pub fn check<H, F, C>(harness: H, case: C)
where
    H: Harness,
    F: Future<Output = ()> + Send,
    C: FnOnce(Fixture<H::Store>) -> F,
{
    run(async move {
        let fixture = harness.fresh().await.at(harness.scale());
        case(fixture).await;
    });
}

/// Runs one case to its end, within its limit.
fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let ended = runtime.block_on(async { tokio::time::timeout(CASE_LIMIT, case).await });
    ended.expect("the case hangs");
}

/// Runs every case and says which fail. A panic is a failure, and so is a case that hangs.
///
/// # Cancellation
/// Dropping this future aborts the cases that run.
pub async fn failures<H: Harness>(harness: H) -> Vec<Failure> {
    all_failures(harness, cases()).await
}

async fn all_failures<H: Harness>(harness: H, cases: Vec<Case<H>>) -> Vec<Failure> {
    let ended = start(harness, cases).join_all().await;
    let mut failures: Vec<_> = ended.into_iter().flatten().collect();
    failures.sort_by_key(|failure| failure.case);
    failures
}

/// The first case to fail, of the suite and of the outbox, if one does; the others are then not
/// waited for. Those that are `likely` to fail are run first, the smallest number before all, and
/// those without a number not at all.
///
/// # Cancellation
/// Dropping this future aborts the cases that run.
pub async fn first_failure<H: outbox::Publisher>(
    harness: H,
    likely: impl Fn(&'static str) -> Option<usize>,
) -> Option<Failure> {
    let mut all: Vec<_> = cases().into_iter().chain(outbox::cases()).collect();
    all.retain(|case| likely(case.name).is_some());
    all.sort_by_key(|case| likely(case.name));
    let mut running = start(harness, all);
    while let Some(ended) = running.join_next().await {
        if let Some(failure) = ended.expect("a case is watched by a task that cannot fail") {
            return Some(failure);
        }
    }
    None
}

/// Starts every case, a few at a time.
fn start<H: Harness>(harness: H, cases: Vec<Case<H>>) -> JoinSet<Option<Failure>> {
    let harness = Arc::new(harness);
    let slots = Arc::new(Semaphore::new(CASES_AT_ONCE));
    let mut running = JoinSet::new();
    for case in cases {
        let (harness, slots) = (Arc::clone(&harness), Arc::clone(&slots));
        running.spawn(async move {
            let _slot = slots.acquire_owned().await;
            // A task of its own, so that its panic is caught and its name is not lost.
            let mut alone = JoinSet::new();
            alone.spawn((case.run)(harness));
            let ended = tokio::time::timeout(CASE_LIMIT, alone.join_next()).await;
            let reason = match ended {
                Ok(Some(Ok(())) | None) => return None,
                Ok(Some(Err(error))) => panic_text(error),
                Err(_) => format!("hangs: not over after {CASE_LIMIT:?}"),
            };
            Some(Failure {
                case: case.name,
                reason,
            })
        });
    }
    running
}

/// What a task that panicked said.
fn panic_text(error: JoinError) -> String {
    let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or_else(|_| "a panic without words".into(), |text| (*text).into()),
    };
    error.try_into_panic().map_or_else(|e| e.to_string(), text)
}

/// Every case there is.
pub fn cases<H: Harness>() -> Vec<Case<H>> {
    macro_rules! collect {
        (() $($module:ident { $($case:ident,)* })*) => {
            vec![$($(Case {
                name: concat!(stringify!($module), "::", stringify!($case)),
                run: Box::new(|harness: Arc<H>| Box::pin(async move {
                    let fixture = harness.fresh().await.at(harness.scale());
                    $module::$case(fixture).await;
                })),
            },)*)*]
        };
    }
    crate::__conformance_cases!([collect]())
}

/// Makes a test of every case of the suite, in one module per group of rules.
///
/// Give it an expression that makes the [`Harness`]; it is evaluated once per
/// test, where `use super::*` sees it. See the [crate's page](crate) for an example.
#[macro_export]
macro_rules! conformance_suite {
    ($harness:expr $(,)?) => {
        $crate::__conformance_cases!([$crate::__conformance_tests]($harness));
    };
}

/// Not part of the API: what [`conformance_suite!`] makes of the list.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (($harness:expr) $($module:ident { $($case:ident,)* })*) => {
        $crate::__conformance_modules!{ [$harness] $($module { $($case,)* })* }
    };
}

/// Not part of the API: hands the harness into every module.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_modules {
    ([$harness:expr]) => {};
    ([$harness:expr] $module:ident { $($case:ident,)* } $($rest:tt)*) => {
        mod $module {
            #[allow(unused_imports, reason = "the harness may be written with a path")]
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::conformance::check($harness, $crate::conformance::$module::$case);
                }
            )*
        }
        $crate::__conformance_modules!{ [$harness] $($rest)* }
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use semel_core::Memory;

    use super::*;

    struct InMemory;

    impl Harness for InMemory {
        type Store = Memory;

        async fn fresh(&self) -> Fixture<Memory> {
            let clock = ManualClock::default();
            Fixture::new(Memory::new(Arc::new(clock.clone())), clock)
        }
    }

    impl outbox::Publisher for InMemory {
        async fn publish(&self, store: &Memory, event: semel_core::outbox::Event) {
            store.publish(event);
        }
    }

    #[test]
    fn no_case_is_forgotten_in_the_list() {
        let outgoing = outbox::cases::<InMemory>();
        let listed: Vec<_> = cases::<InMemory>()
            .iter()
            .chain(&outgoing)
            .map(|c| c.name)
            .collect();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/conformance");
        let files = |folder: &str| std::fs::read_dir(folder).unwrap();
        let all = files(folder).chain(files(&format!("{folder}/outbox")));
        for path in all
            .map(|file| file.unwrap().path())
            .filter(|path| path.is_file())
        {
            let module = match path.file_stem().unwrap().to_str().unwrap() {
                "holds" | "relays" => "outbox",
                module => module,
            };
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines() {
                let written = line
                    .strip_prefix("pub async fn ")
                    .and_then(|rest| {
                        rest.split_once("<S: Subject>")
                            .or_else(|| rest.split_once("<H: Publisher>(f:"))
                    })
                    .or_else(|| line.trim().split_once(", ").filter(|_| module == "table"))
                    .filter(|(name, _)| module != "table" || name.starts_with("every_verb_on"));
                if let Some((case, _)) = written {
                    let name = format!("{module}::{case}");
                    assert!(listed.contains(&name.as_str()), "{name} is not listed");
                }
            }
        }
        assert!(listed.len() > 100, "only {} cases", listed.len());
    }
}
