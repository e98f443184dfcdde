//! Random histories: a store and the state machine must agree at every step.
//!
//! A history is a list of [`Step`]s over a handful of keys, drawn by proptest and shrunk by
//! it where a store disagrees. Names of records are made while it runs, so a step speaks of
//! "the third grant so far" rather than of a name.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use semel_core::store::Which;
use semel_core::transition::Answer;
use semel_core::{
    Backoff, Clock, Decision, Event, Fence, Fingerprint, Fingerprints, KeyScope, OnExpired,
    OperationId, Policy, Record, Reserve, Resource, Stale, State, Status, Timestamp, Verdict,
    Windows,
};

use crate::conformance::fixture::{by, completion, identity, point, verdict};
use crate::conformance::{Harness, Subject};
use crate::twin::{Batch, Twin};

/// Longest history: long enough for a key to live twice.
const MAX_STEPS: usize = 40;

/// Longest that one history may take; only a store that hangs gets here.
const HISTORY_LIMIT: Duration = Duration::from_mins(1);

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Step {
    /// A client asks.
    Reserve(Ask),
    /// Somebody says something about a grant, the latest or an older one.
    Say(Index, Saying),
    /// Something happens out of band, to so many at most.
    Batch(Batch, usize),
    /// Time passes.
    Pass(Duration),
    /// Time passes up to an instant that some record waits for, or one tick beside it.
    Until(Index, i64),
}

/// What a client asks.
#[derive(Clone, Debug)]
pub struct Ask {
    who: (&'static str, &'static str, KeyScope),
    key: &'static str,
    body: Body,
    policy: usize,
}

/// Which fingerprints a request carries.
#[derive(Clone, Copy, Debug)]
enum Body {
    One,
    Other,
    OneInTwoVersions,
}

/// What can be said about a grant.
#[derive(Clone, Copy, Debug)]
pub enum Saying {
    /// Complete, with one of two responses.
    Complete(bool),
    /// Complete without a body.
    CompleteWithoutBody,
    /// Release.
    Release,
    /// Evict.
    Evict,
    /// Mark as unknown, and perhaps name what may have been created.
    MarkUnknown(bool),
    /// Beat, for so many seconds.
    Heartbeat(u64),
    /// Commit a phase.
    Advance(bool),
    /// Resolve as completed, and perhaps name what was created.
    Found(bool),
    /// Resolve as not executed.
    NotExecuted,
    /// Resolve as still unknown, to look again after so many seconds.
    StillUnknown(u64),
    /// Set aside for a person.
    DeadLetter,
    /// Erase the content.
    Erase,
    /// Show the content.
    Reveal,
    /// Name an attempt that does not exist yet.
    CompleteTooEarly,
}

/// Runs `cases` random histories on fresh stores of `harness`, and panics at the first on
/// which the store and the state machine disagree, after making it as short as it can.
///
/// The histories are the same in every run; `SEMEL_HISTORY_SEED` draws others.
///
/// # Panics
/// Where they disagree, with the seed, the shortest history found, and the difference.
pub fn agree<H: Harness>(harness: &H, cases: u32) {
    let seed: u64 = std::env::var("SEMEL_HISTORY_SEED").ok().map_or(1, |seed| {
        seed.parse().expect("SEMEL_HISTORY_SEED is a number")
    });
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let verdict = runner.run(&history(), |history| {
        runtime.block_on(async {
            let twin = Twin::new(harness.fresh().await);
            tokio::time::timeout(HISTORY_LIMIT, replay(twin, history))
                .await
                .map_err(|_| TestCaseError::fail("the store hangs"))
        })
    });
    if let Err(error) = verdict {
        panic!("the store disagrees with the state machine (SEMEL_HISTORY_SEED={seed}): {error}");
    }
}

/// Makes every step of a history on both sides.
pub async fn replay<S: Subject>(mut twin: Twin<S>, history: Vec<Step>) {
    let mut grants: Vec<Fence> = Vec::new();
    for step in history {
        match step {
            Step::Reserve(ask) => {
                let request = ask.request();
                match twin.step(request.id, Event::Reserve(request)).await {
                    Answer::Decision(Decision::Execute(grant) | Decision::Resume(grant)) => {
                        grants.push(grant.fence);
                    }
                    Answer::Decision(_)
                    | Answer::Held(_)
                    | Answer::Resolution(_)
                    | Answer::Applied(_) => {}
                }
            }
            Step::Say(which, saying) => {
                // Rather a recent grant than an old one, but old ones too.
                let Some(place) = grants.len().checked_sub(1) else {
                    continue;
                };
                let back = which.index(7).saturating_sub(3).min(place);
                let fence = grants[place - back];
                let now = twin.clock().now();
                twin.step(fence.id, saying.event(fence, now)).await;
            }
            Step::Batch(batch, limit) => {
                twin.batch(&batch, limit).await;
                // A completer has its say as well.
                let running = twin
                    .records()
                    .filter(|r| r.state.status() == Status::InProgress);
                for fence in running.map(Record::fence) {
                    if !grants.contains(&fence) {
                        grants.push(fence);
                    }
                }
            }
            Step::Pass(time) => twin.clock().advance(time),
            Step::Until(which, ticks) => {
                let instants = instants(&twin);
                if !instants.is_empty() {
                    let instant = which.get(&instants).as_micros() + ticks;
                    twin.clock().set(Timestamp::from_micros(instant));
                }
            }
        }
    }
    twin.verify_all().await;
}

/// The instants still to come that some record waits for.
fn instants<S: Subject>(twin: &Twin<S>) -> Vec<Timestamp> {
    let now = twin.clock().now();
    let mut all = Vec::new();
    for record in twin.records() {
        match &record.state {
            State::InProgress(lease) => all.extend([lease.locked_until, lease.sweep_at()]),
            State::Completed(completed) => {
                all.push(completed.expires_at);
                all.extend(completed.body_expires_at);
            }
            State::FailedRetryable { expires_at } => all.push(*expires_at),
            State::Unknown(unresolved) => all.push(unresolved.reconcile_after),
            State::Expired { purge_at } => all.push(*purge_at),
        }
    }
    all.retain(|instant| *instant > now);
    all
}

/// Random histories.
pub fn history() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..MAX_STEPS)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => ask().prop_map(Step::Reserve),
        8 => (any::<Index>(), saying()).prop_map(|(which, saying)| Step::Say(which, saying)),
        4 => (batch(), select(vec![0, 1, 2, 1000])).prop_map(|(b, limit)| Step::Batch(b, limit)),
        1 => select(vec![0, 1, 1_000_000, 9_999_999, 60_000_000, 3_600_000_000])
            .prop_map(|micros| Step::Pass(Duration::from_micros(micros))),
        3 => (any::<Index>(), -1..=1i64).prop_map(|(which, ticks)| Step::Until(which, ticks)),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let who = select(vec![
        ("tenant-1", "pay", KeyScope::Operation),
        ("tenant-1", "refund", KeyScope::Operation),
        ("tenant-2", "pay", KeyScope::Operation),
        ("tenant-1", "pay", KeyScope::Tenant),
        ("tenant-1", "refund", KeyScope::Tenant),
    ]);
    let body = prop_oneof![
        6 => Just(Body::One),
        1 => Just(Body::Other),
        2 => Just(Body::OneInTwoVersions),
    ];
    (who, select(vec!["a", "b"]), body, 0..policies().len()).prop_map(|(who, key, body, policy)| {
        Ask {
            who,
            key,
            body,
            policy,
        }
    })
}

fn saying() -> impl Strategy<Value = Saying> {
    prop_oneof![
        4 => any::<bool>().prop_map(Saying::Complete),
        1 => Just(Saying::CompleteWithoutBody),
        3 => Just(Saying::Release),
        1 => Just(Saying::Evict),
        3 => any::<bool>().prop_map(Saying::MarkUnknown),
        1 => select(vec![0, 10, 100]).prop_map(Saying::Heartbeat),
        2 => any::<bool>().prop_map(Saying::Advance),
        2 => any::<bool>().prop_map(Saying::Found),
        3 => Just(Saying::NotExecuted),
        2 => select(vec![0, 1, 100]).prop_map(Saying::StillUnknown),
        1 => Just(Saying::DeadLetter),
        2 => select(vec![Saying::Erase, Saying::Reveal]),
        1 => Just(Saying::CompleteTooEarly),
    ]
}

fn batch() -> impl Strategy<Value = Batch> {
    let backoff = Backoff {
        every: Duration::from_secs(5),
        max_every: Duration::from_secs(15),
    };
    let abandoned = |operation: &str, lease| {
        Batch::ClaimAbandoned(
            operation.into(),
            "completer-1".into(),
            Duration::from_secs(lease),
        )
    };
    select(vec![
        Batch::Sweep,
        abandoned("pay", 10),
        abandoned("refund", 0),
        Batch::ClaimDue(Which::All, backoff),
        Batch::ClaimDue(Which::Only("pay".into()), backoff),
        Batch::ClaimDue(
            Which::AllBut(["pay".into(), "payout".into()].into()),
            backoff,
        ),
        Batch::Expire,
        Batch::DropBodies,
        Batch::Purge,
    ])
}

/// The policies that histories are made under: each differs where a store could differ.
fn policies() -> [Policy; 5] {
    let minute = Duration::from_mins(1);
    let usual = Policy {
        lease: Duration::from_secs(10),
        windows: Windows {
            replay: minute,
            body: minute,
            tombstone: Some(minute),
        },
        ..Policy::default()
    };
    let resumable = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        resume_within: minute,
        windows: Windows {
            body: minute / 2,
            ..usual.windows
        },
        ..usual.clone()
    };
    let forgetful = Policy {
        on_expired: OnExpired::Execute,
        windows: Windows {
            tombstone: None,
            ..resumable.windows
        },
        ..usual.clone()
    };
    let begins_anew = Policy {
        on_expired: OnExpired::Execute,
        stale: Stale::Resume,
        ..usual.clone()
    };
    // The sweeper may come as soon as a completer may.
    let resumable_at_once = Policy {
        resume_within: Duration::ZERO,
        ..resumable.clone()
    };
    [usual, resumable, forgetful, begins_anew, resumable_at_once]
}

impl Ask {
    fn request(&self) -> Reserve {
        let (tenant, operation, scope) = self.who;
        let one = Fingerprint::from_parts(1, [1; 32]);
        let fingerprints: Fingerprints = match self.body {
            Body::One => one.into(),
            Body::Other => Fingerprint::from_parts(1, [2; 32]).into(),
            Body::OneInTwoVersions => {
                Fingerprints::from(Fingerprint::from_parts(2, [3; 32])).with_older(one)
            }
        };
        Reserve {
            id: OperationId::generate(),
            identity: identity(tenant, operation, self.key).scoped(scope),
            fingerprints,
            owner: "host-1/42".into(),
            policy: policies()[self.policy].clone(),
        }
    }
}

impl Saying {
    fn event(self, fence: Fence, now: Timestamp) -> Event {
        let seconds = Duration::from_secs;
        let word = |first| if first { "paid" } else { "declined" };
        match self {
            Self::Complete(first) => Event::Complete(fence, completion(word(first))),
            Self::CompleteWithoutBody => {
                let mut end = completion("");
                end.response.body = None;
                end.resource = None;
                Event::Complete(fence, end)
            }
            Self::Release => Event::Release(fence, "not_sent".into()),
            Self::Evict => Event::Evict(fence, "refused".into()),
            Self::MarkUnknown(named) => {
                let resource = named.then(|| Resource {
                    kind: "refund".into(),
                    id: "re_1".into(),
                });
                Event::MarkUnknown(fence, "timeout".into(), resource)
            }
            Self::Heartbeat(lease) => Event::Heartbeat(fence, seconds(lease)),
            Self::Advance(first) => Event::Advance(fence, point(word(first), b"\0\xff")),
            Self::Found(named) => {
                let mut end = completion("found");
                end.resource = end.resource.filter(|_| named);
                Event::Resolve(verdict(fence, Verdict::Completed(end)))
            }
            Self::NotExecuted => {
                Event::Resolve(verdict(fence, Verdict::NotExecuted("never_created".into())))
            }
            Self::StillUnknown(later) => {
                let later = now.saturating_add(seconds(later));
                let still = Verdict::StillUnknown("not_found".into(), later);
                Event::Resolve(verdict(fence, still))
            }
            Self::DeadLetter => Event::DeadLetter(fence, "tries_used_up".into()),
            Self::Erase => Event::Erase(by()),
            Self::Reveal => Event::Reveal(by()),
            Self::CompleteTooEarly => {
                let attempt = fence.attempt + 1;
                Event::Complete(Fence { attempt, ..fence }, completion("paid"))
            }
        }
    }
}
