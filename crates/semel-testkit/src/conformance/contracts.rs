//! What processes publish about their routes, and the records that a retry can still meet.

use semel_core::contract::{
    Acceptance, AgreementState, Contracts, IdentityContract, OperationMatch, PublishedRoute,
    PublishedRules, RecordFilter, RecordsInUse, RegionAgreement, RegionList, Rollback,
};
use semel_core::fingerprint::RulesId;
use semel_core::{Decision, Fingerprint, Fingerprints, Reserve};

use super::fixture::{
    WINDOWS, again, completion, fingerprint, identity, request, request_for, together,
};
use super::{Fixture, Subject};

/// A document that uses every field, with text that a store must not change.
fn contracts(name: &str) -> Contracts {
    let identity = IdentityContract {
        operation: Some(name.into()),
        key_scope: "operation".into(),
        key: "idempotency-key (ietf)".into(),
        tenant: "header:x-account-id".into(),
        match_exactly: true,
        regions: Some(RegionList {
            version: 7,
            names: vec!["eu".into(), "us".into()],
            tenant_homes: Some("a hash".into()),
        }),
    };
    Contracts {
        routes: vec![PublishedRoute {
            route: "POST /zahlungen/{id}/größe \"'\\".into(),
            identity: identity.clone(),
            published_at: 1_700_000_000_000_000,
        }],
        rule_sets: vec![PublishedRules {
            operation: name.into(),
            id: i64::MAX,
            rules: r#"{"defaults":[["/channel","\"web\""]]}"#.into(),
            published_at: 1,
        }],
        acceptances: vec![Acceptance {
            at: 2,
            by: "operator".into(),
            reason: "no client retries".into(),
            route: "POST /payments".into(),
            from: None,
            to: Some(identity),
        }],
        rollbacks: vec![Rollback {
            noticed_at: 3,
            record: "a record".into(),
            accepted: None,
        }],
        regions: Some(RegionAgreement {
            list: "a hash".into(),
            version: 7,
            state: AgreementState::Confirmed,
        }),
    }
}

/// Nothing is published in a new store. A publication applies where nothing was published since it
/// was prepared, and returns exactly what was written.
pub async fn a_publication_replaces_the_revision_that_it_read<S: Subject>(f: Fixture<S>) {
    let first = f.store.contracts().await.unwrap();
    assert_eq!(
        (first.revision, &first.contracts),
        (0, &Contracts::default())
    );
    assert!(
        f.store
            .publish_contracts(0, contracts("pay"))
            .await
            .unwrap()
    );
    assert!(
        !f.store
            .publish_contracts(0, contracts("late"))
            .await
            .unwrap()
    );
    let second = f.store.contracts().await.unwrap();
    assert_eq!((second.revision, second.contracts), (1, contracts("pay")));
    assert!(
        !f.store
            .publish_contracts(2, contracts("early"))
            .await
            .unwrap()
    );
    assert!(
        f.store
            .publish_contracts(1, contracts("charge"))
            .await
            .unwrap()
    );
    let third = f.store.contracts().await.unwrap();
    assert_eq!((third.revision, third.contracts), (2, contracts("charge")));
}

/// Processes that start at once do not overwrite each other's publications.
pub async fn of_racing_publications_one_wins_each_revision<S: Subject>(f: Fixture<S>) {
    for revision in 0..4 {
        let tasks: Vec<usize> = (0..8).collect();
        let won = together(&f.store, tasks, move |store, task| async move {
            let offered = contracts(&format!("{revision}-{task}"));
            store.publish_contracts(revision, offered).await.unwrap()
        })
        .await;
        assert_eq!(won.iter().filter(|won| **won).count(), 1);
    }
    assert_eq!(f.store.contracts().await.unwrap().revision, 4);
}

/// Unfinished records, those within their window, and all are counted by operation, by a prefix of
/// it, and by rules.
pub async fn records_in_use_are_counted<S: Subject>(f: Fixture<S>) {
    let of = |operation: &str, key: &str, rules: i64| {
        let asked = request_for(identity("t", operation, key));
        let fingerprint: Fingerprint = fingerprint(1).under(RulesId(rules));
        Reserve {
            fingerprints: fingerprint.into(),
            ..asked
        }
    };
    let count = async |operations, rules: Option<i64>| {
        let rules = rules.map(RulesId);
        f.store
            .count_records(RecordFilter { operations, rules })
            .await
            .unwrap()
    };
    let exact = |name: &str| OperationMatch::Exact(name.into());
    f.completed(of("POST /a", "over", 0), "old").await;
    f.clock.advance(WINDOWS.replay);
    f.completed(of("POST /a", "done", 0), "paid").await;
    let ends = f.now().saturating_add(WINDOWS.replay);
    f.execute(of("POST /a", "running", 5)).await;
    f.lost(of("POST /ab", "lost", 5)).await;
    f.released(of("POST /a", "released", 5)).await;
    f.execute(of("post /a", "other", 0)).await;

    let in_a = RecordsInUse {
        unfinished: 1,
        replayable: 1,
        all: 4,
        last_window_ends: Some(ends),
    };
    assert_eq!(count(exact("POST /a"), None).await, in_a);
    assert!(in_a.protect_retries());
    let by_prefix = count(OperationMatch::Prefix("POST /a".into()), None).await;
    let both = RecordsInUse {
        unfinished: 2,
        all: 5,
        ..in_a
    };
    assert_eq!(by_prefix, both);
    let of_rules = RecordsInUse {
        unfinished: 1,
        replayable: 0,
        all: 2,
        last_window_ends: None,
    };
    assert_eq!(count(exact("POST /a"), Some(5)).await, of_rules);
    let absent = count(exact("POST /%"), None).await;
    assert_eq!(absent, RecordsInUse::default());
    assert!(!absent.protect_retries());

    f.clock.advance(WINDOWS.replay);
    let over = count(exact("POST /a"), None).await;
    assert_eq!(
        (over.replayable, over.last_window_ends, over.all),
        (0, None, 4)
    );
}

/// A record is compared under its own rules. A request that brings no fingerprint under them is not
/// misuse: it is asked for one. Nothing is granted or changed before.
pub async fn a_record_is_compared_under_its_own_rules<S: Subject>(f: Fixture<S>) {
    let under = |byte, rules| fingerprint(byte).under(RulesId(rules));
    for (name, of_record) in [("named", 7_000_000_000), ("default", 0)] {
        let first = Reserve {
            fingerprints: under(1, of_record).into(),
            ..request(name)
        };
        f.released(first.clone()).await;
        let before = f.record(first.id).await;
        assert_eq!(before.fingerprint, under(1, of_record));
        // The same digest under other rules says nothing.
        let deployed = |older: Option<Fingerprint>| {
            let newest = Fingerprints::from(under(1, 8_000_000_000));
            Reserve {
                fingerprints: older.into_iter().fold(newest, Fingerprints::with_older),
                ..again(&first)
            }
        };
        let decision = f.reserve(deployed(None)).await;
        let (id, rules) = (first.id, RulesId(of_record));
        assert_eq!(decision, Decision::OtherRules { id, rules });
        let decision = f.reserve(deployed(Some(under(2, of_record)))).await;
        assert_eq!(decision, Decision::KeyMisuse { id });
        assert_eq!(f.record(first.id).await, before);
        let grant = f.execute(deployed(Some(under(1, of_record)))).await;
        assert_eq!((grant.fence.id, grant.fence.attempt), (id, 2));
        assert_eq!(f.record(first.id).await.fingerprint, under(1, of_record));
        f.complete(grant.fence, completion("paid")).await;
        f.replay(deployed(Some(under(1, of_record)))).await;
    }
}
