//! The rules of the state machine as a suite that any store runs.
//!
//! Every case is an `async fn` over a [`Fixture`]; its name states condition and result, and its
//! rustdoc the rule. One list feeds both
//! [`conformance_suite!`](crate::conformance_suite), which makes a test of every case, and
//! [`failures`], which returns the cases that a store breaks: a test that removes a guard from a
//! store wants at least one.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use semel_core::Store;
use semel_core::store::AnyStore;
use tokio::sync::Semaphore;
use tokio::task::{JoinError, JoinSet};

pub use fixture::{Fixture, together};

use crate::ManualClock;

pub(crate) mod fixture;
mod list;

pub mod abandoned;
pub mod claims;
pub mod content;
pub mod contracts;
pub mod evidence;
pub mod exact_times;
pub mod fences;
pub mod history;
pub mod inbox;
pub mod keys;
pub mod listing;
pub mod out_of_band;
pub mod outbox;
pub mod races;
pub mod record_counts;
pub mod replays;
pub mod reserve;
pub mod resources;
pub mod retention;
pub mod statistics;
pub mod table;
pub mod unfinished;
pub mod verdicts;

/// Timeout of one case. Cases do not wait for time, so only a store that hangs reaches it; generous
/// for busy machines.
const CASE_LIMIT: Duration = Duration::from_mins(3);

/// How many cases [`failures`] runs concurrently.
const CASES_AT_ONCE: usize = 8;

/// A store with all the traits that the suite needs.
pub trait Subject: Store {}

impl<S: Store> Subject for S {}

/// Creates stores for the suite.
pub trait Harness: Send + Sync + 'static {
    /// The store.
    type Store: Subject;

    /// An *empty* store, its clock, and the resources that must outlive it.
    fn fresh(&self) -> impl Future<Output = Fixture<Self::Store>> + Send;

    /// The size of the races.
    fn scale(&self) -> Scale {
        Scale::default()
    }
}

/// The size of the races.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Concurrent tasks in a race.
    pub tasks: usize,
    /// Rounds of each race.
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
    /// Small, for one run of the suite per removed guard.
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
    /// The panic message.
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
///
/// # Panics
/// Where the store breaks the rule, or there is no case of that name.
pub fn check<H: Harness>(harness: H, name: &str) {
    let case = erased_cases()
        .into_iter()
        .find_map(|(known, case)| (known == name).then_some(case))
        .unwrap_or_else(|| panic!("{name} is not a case"));
    run(async move {
        let fixture = harness.fresh().await.at(harness.scale());
        case(erase_type(fixture)).await;
    });
}

/// Runs one case within its time limit.
fn run(case: impl Future<Output = ()>) {
    let ended = block_on(async { tokio::time::timeout(CASE_LIMIT, case).await });
    ended.unwrap_or_else(|_| {
        panic!("the case did not end within {CASE_LIMIT:?}: a call of the store hangs")
    });
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(future)
}

/// Runs every case and returns the failures. A panic is a failure, and so is a timeout.
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

/// The names of all cases, of the suite and of the outbox.
pub(crate) fn case_names<H: outbox::Publisher>() -> Vec<&'static str> {
    let suite = cases::<H>().into_iter().map(|case| case.name);
    let outbox = outbox::cases::<H>().into_iter().map(|case| case.name);
    suite.chain(outbox).collect()
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
            // A separate task, so that a panic is caught and reported with the case's name.
            let mut alone = JoinSet::new();
            alone.spawn((case.run)(harness));
            let ended = tokio::time::timeout(CASE_LIMIT, alone.join_next()).await;
            let reason = match ended {
                Ok(Some(Ok(())) | None) => return None,
                Ok(Some(Err(error))) => panic_text(error),
                Err(_) => format!("did not end within {CASE_LIMIT:?}: a call of the store hangs"),
            };
            Some(Failure {
                case: case.name,
                reason,
            })
        });
    }
    running
}

/// The message of a panic.
fn panic_text(error: JoinError) -> String {
    let text = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic.downcast::<&str>().map_or_else(
            |_| "a panic without a message".into(),
            |text| (*text).into(),
        ),
    };
    error.try_into_panic().map_or_else(|e| e.to_string(), text)
}

/// Every case there is.
pub fn cases<H: Harness>() -> Vec<Case<H>> {
    let all = erased_cases().into_iter().map(|(name, case)| Case {
        name,
        run: Box::new(move |harness: Arc<H>| {
            Box::pin(async move {
                let fixture = harness.fresh().await.at(harness.scale());
                case(erase_type(fixture)).await;
            })
        }),
    });
    all.collect()
}

/// Erases the type of a store that is not shared yet.
fn erase_type<S: Subject>(fixture: Fixture<S>) -> Fixture<AnyStore> {
    let store = Arc::into_inner(fixture.store).expect("a fresh store has one owner");
    Fixture {
        store: Arc::new(AnyStore::new(store)),
        clock: fixture.clock,
        scale: fixture.scale,
        resources: fixture.resources,
    }
}

/// A case over a store of any type.
type ErasedCase = fn(Fixture<AnyStore>) -> Running;

/// Every case by its name. The store's type is erased, so that the suite is compiled once and not
/// once for each store.
fn erased_cases() -> Vec<(&'static str, ErasedCase)> {
    macro_rules! collect {
        (() $($module:ident { $($case:ident,)* })*) => {
            vec![$($((
                concat!(stringify!($module), "::", stringify!($case)),
                (|fixture| Box::pin($module::$case(fixture))) as ErasedCase,
            ),)*)*]
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
                    $crate::conformance::check(
                        $harness,
                        concat!(stringify!($module), "::", stringify!($case)),
                    );
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
    fn the_list_contains_every_case() {
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
