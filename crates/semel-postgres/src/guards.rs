//! Every guard in the statements is needed: without any one of them the suite fails.
//!
//! A guard is a condition on a line of its own that ends in `-- guard: why`. The test
//! removes each in turn, by making its condition true for every row, and wants a rule to
//! be broken.

use std::sync::Arc;

use semel_core::identity::IdentityHash;
use semel_core::transition::{Completion, Decision};
use semel_core::{
    Error, Fence, Fingerprint, Identity, Inspect, Key, OnExpired, OperationId, Policy, Reserve,
    Response, Stale, Store,
};
use semel_testkit::ManualClock;
use semel_testkit::conformance::{self, Fixture, Harness, Scale};
use semel_testkit::database::{Database, server};

use crate::queries::Queries;
use crate::{Options, Postgres};

/// Fewer would mean that the marks are no longer found.
const GUARDS_AT_LEAST: usize = 44;

/// A store with these statements.
#[derive(Clone)]
struct Altered {
    queries: Queries,
    identity_hash: fn(&Identity) -> IdentityHash,
}

impl Harness for Altered {
    type Store = Postgres;

    async fn fresh(&self) -> Fixture<Postgres> {
        let database = Database::reused().await.unwrap();
        let clock = ManualClock::default();
        let mut options = Options::new(&database.url).clock(Arc::new(clock.clone()));
        options.queries = self.queries.clone();
        options.identity_hash = self.identity_hash;
        Fixture::new(options.open().await.unwrap(), clock).on(database)
    }

    fn scale(&self) -> Scale {
        Scale::QUICK
    }
}

/// The same statement with its `nth` guard made true for every row.
fn without_guard(sql: &str, nth: usize) -> Option<(String, String)> {
    let guarded: Vec<_> = sql
        .lines()
        .enumerate()
        .filter(|(_, line)| line.contains("-- guard:"))
        .collect();
    let (at, line) = *guarded.get(nth)?;
    let (code, why) = line.split_once("-- guard:")?;
    // The condition comes after one of these words.
    let word = [" THEN ", "WHERE ", "AND ", "ELSE "]
        .into_iter()
        .find(|word| code.contains(word) && (*word == " THEN " || code.trim().starts_with(word)))?;
    let (before, condition) = code.split_once(word)?;
    let mut lines: Vec<_> = sql.lines().map(str::to_owned).collect();
    // Every parameter is still used, so that the statement fails for no other reason.
    lines[at] = format!("{before}{word}(({condition}) OR TRUE)");
    Some((lines.join("\n"), why.trim().to_owned()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_fails_without_any_one_guard() {
    if server().is_none() {
        return;
    }
    let mut names = Queries::default();
    let names: Vec<_> = names
        .each()
        .into_iter()
        .map(|(name, sql)| (name, *sql))
        .collect();
    let mut guards = 0;
    let mut unneeded = Vec::new();
    for (name, sql) in names {
        for nth in 0.. {
            let Some((altered, why)) = without_guard(sql, nth) else {
                break;
            };
            guards += 1;
            let mut queries = Queries::default();
            for (other, text) in queries.each() {
                if other == name {
                    *text = Box::leak(altered.clone().into_boxed_str());
                }
            }
            match broken_rule(queries).await {
                Some(rule) => println!("{name}.sql without \"{why}\": {rule}"),
                None => unneeded.push(format!("{name}.sql: {why}")),
            }
        }
    }
    assert!(unneeded.is_empty(), "nothing fails without: {unneeded:#?}");
    assert!(guards >= GUARDS_AT_LEAST, "only {guards} guards were found");
}

#[test]
fn every_mark_is_a_guard_that_can_be_removed() {
    let mut queries = Queries::default();
    for (name, sql) in queries.each() {
        let marks = sql.matches("-- guard:").count();
        let removed = (0..).map_while(|nth| without_guard(sql, nth)).count();
        assert_eq!(removed, marks, "{name}.sql");
    }
}

/// A rule that a store with these statements breaks, if it breaks one.
async fn broken_rule(queries: Queries) -> Option<String> {
    let colliding = Altered {
        queries: queries.clone(),
        identity_hash: |_| IdentityHash([7; 16]),
    };
    if let Err(broken) = two_identities_with_one_hash_stay_apart(&colliding).await {
        return Some(broken);
    }
    let altered = Altered {
        queries,
        identity_hash: Identity::hash,
    };
    conformance::first_failure(altered)
        .await
        .map(|failure| failure.case.to_owned())
}

/// What no client can bring about through the suite: a hash that is not unique. A retry of
/// another tenant under the same hash must neither get nor change anything, in any state.
async fn two_identities_with_one_hash_stay_apart(harness: &Altered) -> Result<(), String> {
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

async fn leave(fixture: &Fixture<Postgres>, fence: Fence, state: &str) {
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
