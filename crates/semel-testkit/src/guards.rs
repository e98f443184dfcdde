//! Every guard in a store's statements is needed: without any one of them the suite fails.
//!
//! A guard is a condition on a line of its own that ends in `-- guard: why`. It comes after one of
//! the words `WHERE`, `AND`, `THEN` and `ELSE`, and is removed by making it true for every row.
//!
//! Running the whole suite once per guard takes minutes. So each store keeps a table of detectors:
//! for each guard, a case that fails without it. That case runs first, and the whole suite only
//! where it passes. [`guard_tests!`](crate::guard_tests) makes a test of each statement, so that
//! they run in parallel.

use semel_core::identity::IdentityHash;
use semel_core::transition::{Completion, Decision};
use semel_core::{
    Error, Fence, Fingerprint, Identity, Key, OnExpired, OperationId, Policy, Reserve, Response,
    Stale, Store,
};

use crate::conformance::outbox::Publisher;
use crate::conformance::{self, Fixture, Harness};

/// How a store hashes identities.
pub type Hash = fn(&Identity) -> IdentityHash;

/// A statement by its name.
pub type Statement = (&'static str, &'static str);

/// The name of the one case that is not in the suite: it needs a hash that collides.
const COLLISION: &str = "guards::two_identities_with_one_hash_stay_apart";

/// The guards of one store.
pub struct Guards<H> {
    /// Every statement of the store.
    pub statements: Vec<Statement>,
    /// Which case detects that a guard is missing. A line for each: the statement, the number of
    /// the guard in it from 0, and the case.
    pub detectors: &'static str,
    /// Makes a harness of the store with one statement replaced and identities hashed like this.
    pub alter: fn(Option<Statement>, Hash) -> H,
}

impl<H: Publisher> Guards<H> {
    /// Removes each guard of a statement in turn.
    ///
    /// # Panics
    /// Where the suite passes without one of them.
    pub fn check(&self, name: &str) {
        let known = self.statements.iter().find(|(known, _)| *known == name);
        let (name, sql) = known.unwrap_or_else(|| panic!("{name}.sql is not a statement"));
        conformance::block_on(async {
            for nth in 0..count(sql) {
                self.check_guard(name, sql, nth).await;
            }
        });
    }

    async fn check_guard(&self, name: &'static str, sql: &str, nth: usize) {
        let removed = without_guard(sql, nth);
        let (text, why) = removed.unwrap_or_else(|| panic!("{name}.sql: no guard {nth}"));
        let change = (name, &*Box::leak(text.into_boxed_str()));
        let listed = self.detector(name, nth);
        if let Some(case) = listed
            && self.fails(Some(change), case).await
        {
            println!("{name}.sql without \"{why}\": {case} fails");
            return;
        }
        let found = self.first_failure(change).await;
        let case = found.unwrap_or_else(|| panic!("{name}.sql: nothing fails without \"{why}\""));
        println!(
            "{name}.sql without \"{why}\": {case} fails, and the table of detectors has {listed:?}. \
             Put this line into it:\n{name} {nth} {case}"
        );
    }

    /// The detectors find nothing where every guard is in place.
    ///
    /// # Panics
    /// Where one of them fails.
    pub fn check_detectors(&self) {
        conformance::block_on(async {
            assert!(!self.fails(None, COLLISION).await, "{COLLISION}");
            let is_detector = |case: &str| self.lines().any(|(_, _, detector)| detector == case);
            let harness = (self.alter)(None, Identity::hash);
            let failure =
                conformance::first_failure(harness, |case| is_detector(case).then_some(0)).await;
            assert_eq!(failure, None, "fails with every guard in place");
        });
    }

    /// The tests and the table of detectors are complete. Fewer guards than `at_least` would mean
    /// that the marks are not found any more.
    ///
    /// # Panics
    /// Where a statement has no test or a guard no detector, or the table names a guard or a case that
    /// does not exist.
    pub fn check_tables(&self, tested: &[&str], at_least: usize) {
        let guarded = self.statements.iter().filter(|(_, sql)| count(sql) > 0);
        let guarded: Vec<&str> = guarded.map(|(name, _)| *name).collect();
        assert_eq!(guarded, tested, "the statements that have guards");
        let guards = || {
            self.statements
                .iter()
                .map(|(name, sql)| (*name, count(sql)))
        };
        let total: usize = guards().map(|(_, count)| count).sum();
        assert!(total >= at_least, "only {total} guards were found");
        let all: Vec<_> = guards()
            .flat_map(|(name, count)| (0..count).map(move |nth| (name, nth)))
            .collect();
        for (name, nth) in &all {
            assert!(
                self.detector(name, *nth).is_some(),
                "guard {nth} of {name}.sql has no detector: its test prints the line to add"
            );
        }
        let cases: Vec<&str> = conformance::case_names::<H>();
        for (name, nth, case) in self.lines() {
            assert!(all.contains(&(name, nth)), "{name}.sql has no guard {nth}");
            let exists = case == COLLISION || cases.contains(&case);
            assert!(
                exists,
                "{case}, the detector of guard {nth} of {name}.sql, is not a case"
            );
        }
    }

    fn lines(&self) -> impl Iterator<Item = (&'static str, usize, &'static str)> {
        let lines = self.detectors.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [name, nth, case] => (name, nth.parse().unwrap(), case),
                _ => panic!("not a detector: {line:?}"),
            }
        })
    }

    fn detector(&self, name: &str, nth: usize) -> Option<&'static str> {
        let mut lines = self.lines();
        let line = lines.find(|(listed, number, _)| *listed == name && *number == nth);
        line.map(|(_, _, case)| case)
    }

    /// Whether one case fails.
    async fn fails(&self, change: Option<Statement>, case: &str) -> bool {
        if case == COLLISION {
            let colliding = (self.alter)(change, |_| IdentityHash([7; 16]));
            let kept = two_identities_with_one_hash_stay_apart(&colliding).await;
            return kept.is_err();
        }
        let harness = (self.alter)(change, Identity::hash);
        let only = |name: &str| (name == case).then_some(0);
        conformance::first_failure(harness, only).await.is_some()
    }

    /// The first failing case. Cases whose name shares a word with the statement run first.
    async fn first_failure(&self, change: Statement) -> Option<&'static str> {
        if self.fails(Some(change), COLLISION).await {
            return Some(COLLISION);
        }
        let (name, _) = change;
        let harness = (self.alter)(Some(change), Identity::hash);
        let rank = |case: &str| {
            Some(usize::from(
                !name.split('_').any(|word| case.contains(word)),
            ))
        };
        let failure = conformance::first_failure(harness, rank).await;
        failure.map(|failure| failure.case)
    }
}

/// Makes a test of every statement that has guards, in a module of its own, and a list of them
/// called `WITH_GUARDS`. Each test calls the function `$check` with the statement's name.
#[macro_export]
macro_rules! guard_tests {
    ($check:ident: $($statement:ident)*) => {
        const WITH_GUARDS: &[&str] = &[$(stringify!($statement)),*];

        mod the_suite_fails_without_any_guard_of {
            $(
                #[test]
                fn $statement() {
                    super::$check(stringify!($statement));
                }
            )*
        }
    };
}

fn count(sql: &str) -> usize {
    sql.matches("-- guard:").count()
}

/// The same statement with its `nth` guard made true for every row.
fn without_guard(sql: &str, nth: usize) -> Option<(String, String)> {
    let mut lines: Vec<_> = sql.lines().map(str::to_owned).collect();
    let at = (0..lines.len())
        .filter(|at| lines[*at].contains("-- guard:"))
        .nth(nth)?;
    let (code, why) = lines[at].split_once("-- guard:")?;
    let word = [" THEN ", "WHERE ", "AND ", "ELSE "]
        .into_iter()
        .find(|word| code.contains(word) && (*word == " THEN " || code.trim().starts_with(word)))?;
    let (before, condition) = code.split_once(word)?;
    let why = why.trim().to_owned();
    // Every parameter is still used, so that the statement fails for no other reason.
    lines[at] = format!("{before}{word}(({condition}) OR TRUE)");
    Some((lines.join("\n"), why))
}

/// A hash collision, which no client can cause through the suite. A retry of another tenant under
/// the same hash must neither get nor change anything, in any state.
async fn two_identities_with_one_hash_stay_apart<H: Harness>(harness: &H) -> Result<(), String> {
    let eager = Policy {
        on_expired: OnExpired::Execute,
        ..Policy::default()
    };
    let resuming = Policy {
        stale: Stale::Resume,
        recovery_points: true,
        ..Policy::default()
    };
    for (state, policy) in [
        ("released", &eager),
        ("lapsed", &eager),
        ("lapsed", &resuming),
        ("completed", &eager),
    ] {
        let fixture = harness.fresh().await;
        let store = &fixture.store;
        let Ok(Decision::Execute(grant)) = store.reserve(request("tenant-a", policy)).await else {
            return Err("the first request is not granted".into());
        };
        leave(&fixture, grant.fence, state).await;
        let before = store.find(grant.fence.id).await.unwrap();
        let answer = store.reserve(request("tenant-b", policy)).await;
        if !matches!(answer, Err(Error::Corrupt { .. })) {
            return Err(format!(
                "{state}: another tenant with the same hash got {answer:?}"
            ));
        }
        if store.find(grant.fence.id).await.unwrap() != before {
            return Err(format!(
                "{state}: another tenant with the same hash changed the record"
            ));
        }
    }
    Ok(())
}

async fn leave<S: Store>(fixture: &Fixture<S>, fence: Fence, state: &str) {
    let Policy { lease, windows, .. } = Policy::default();
    match state {
        "released" => {
            fixture
                .store
                .release(fence, "refused".into())
                .await
                .unwrap();
        }
        "lapsed" => fixture.clock.advance(lease),
        "completed" => {
            let response = Response {
                status: 201,
                headers: vec![],
                body: None,
                schema_version: 0,
            };
            let completion = Completion {
                response,
                resource: None,
            };
            fixture.store.complete(fence, completion).await.unwrap();
            fixture.clock.advance(windows.replay);
        }
        state => panic!("unknown state {state}"),
    }
}

fn request(tenant: &str, policy: &Policy) -> Reserve {
    Reserve {
        id: OperationId::generate(),
        identity: Identity::new(tenant, "create_payment", Key::new("key-1").unwrap()).unwrap(),
        fingerprints: Fingerprint::from_parts(1, [1; 32]).into(),
        owner: "test".into(),
        policy: policy.clone(),
    }
}
