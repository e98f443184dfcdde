//! Every guard in a store's statements is needed: without any one of them the suite fails.
//!
//! A guard is a condition on a line of its own that ends in `-- guard: why`. It comes after one of
//! the words `WHERE`, `AND`, `THEN` and `ELSE`, and is removed by making it true for every row.

use semel_core::identity::IdentityHash;
use semel_core::transition::{Completion, Decision};
use semel_core::{
    Error, Fence, Fingerprint, Identity, Inspect, Key, OnExpired, OperationId, Policy, Reserve,
    Response, Stale, Store,
};

use crate::conformance::outbox::Publisher;
use crate::conformance::{self, Fixture, Harness};

/// How a store hashes identities.
pub type Hash = fn(&Identity) -> IdentityHash;

/// A statement by its name.
pub type Statement = (&'static str, &'static str);

/// A part of the statements, so that several tests can look at one store at once.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// Which part, from 0.
    pub nth: usize,
    /// How many parts there are.
    pub of: usize,
}

/// Removes each guard in turn, and wants a rule to be broken. `altered` makes a harness whose
/// statement of that name has that text, and whose identities are hashed so. Fewer guards in all
/// the statements than `at_least` would mean that the marks are no longer found.
///
/// # Cancellation
/// Dropping the future stops the search.
pub async fn are_all_needed<H: Publisher>(
    statements: &[Statement],
    share: Share,
    at_least: usize,
    altered: impl Fn(Option<Statement>, Hash) -> H,
) {
    let marks = |sql: &str| sql.matches("-- guard:").count();
    let guards: usize = statements.iter().map(|(_, sql)| marks(sql)).sum();
    assert!(guards >= at_least, "only {guards} guards were found");
    let mut unneeded = Vec::new();
    let mut killers = Killers::default();
    for (name, sql) in statements.iter().skip(share.nth).step_by(share.of) {
        for nth in 0..marks(sql) {
            let removed = without_guard(sql, nth);
            let (text, why) = removed.unwrap_or_else(|| panic!("{name}.sql: no guard {nth}"));
            let text: &'static str = Box::leak(text.into_boxed_str());
            let altered = |hash| altered(Some((name, text)), hash);
            match broken_rule(altered, |case| Some(killers.rank(name, case))).await {
                Some(rule) => {
                    println!("{name}.sql without \"{why}\": {rule}");
                    killers.last.retain(|case| *case != rule);
                    killers.last.insert(0, rule);
                }
                None => unneeded.push(format!("{name}.sql: {why}")),
            }
        }
    }
    assert!(unneeded.is_empty(), "nothing fails without: {unneeded:#?}");
    // What found a missing guard finds nothing where none is missing.
    let rule = broken_rule(|hash| altered(None, hash), |case| killers.ago(case)).await;
    assert_eq!(rule, None, "broken with all guards in place");
}

/// Cases that found a missing guard, the last one first: the next guard of the same statement is
/// often found by the same case, and most of the suite need not be run.
#[derive(Default)]
struct Killers {
    last: Vec<String>,
}

impl Killers {
    /// How long ago the case found something, if it did.
    fn ago(&self, case: &str) -> Option<usize> {
        self.last.iter().position(|last| last == case)
    }

    fn rank(&self, statement: &str, case: &str) -> usize {
        let akin = statement.split('_').any(|word| case.contains(word));
        let otherwise = self.last.len() + usize::from(!akin);
        self.ago(case).unwrap_or(otherwise)
    }
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

/// A rule that a store breaks, if it breaks one.
async fn broken_rule<H: Publisher>(
    harness: impl Fn(Hash) -> H,
    likely: impl Fn(&'static str) -> Option<usize>,
) -> Option<String> {
    let colliding = harness(|_| IdentityHash([7; 16]));
    if let Err(broken) = two_identities_with_one_hash_stay_apart(&colliding).await {
        return Some(broken);
    }
    conformance::first_failure(harness(Identity::hash), likely)
        .await
        .map(|failure| failure.case.to_owned())
}

/// What no client can bring about through the suite: a hash that is not unique. A retry of
/// another tenant under the same hash must neither get nor change anything, in any state.
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
        state => panic!("no way to leave a record {state}"),
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
