//! A correct API passes every probe, and each hole fails those that look for it, and no other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test may fail loudly"
)]

mod support;

use semel_check::{Chosen, Counter, Dialect, Error, Id, Report, Verdict, check};
use support::{Hole, Manner, Memory, target};

async fn found(hole: Hole, manner: Manner) -> Report {
    let memory = Memory::new(hole, manner);
    check(&target(), &memory).await.unwrap()
}

fn with(report: &Report, verdict: Verdict) -> Vec<Id> {
    let found = report
        .probes
        .iter()
        .filter(|finding| finding.verdict == verdict);
    found.map(|finding| finding.id).collect()
}

#[tokio::test(start_paused = true)]
async fn a_correct_api_passes_all_probes_whatever_its_manner() {
    for manner in [
        Manner::Draft,
        Manner::Waits,
        Manner::Accepts,
        Manner::Plain,
        Manner::Mute,
    ] {
        let report = found(Hole::None, manner).await;
        assert_eq!(
            with(&report, Verdict::Pass),
            Id::ALL,
            "{manner:?}\n{}",
            report.json()
        );
        let dialect = match manner {
            Manner::Plain | Manner::Mute => Dialect::Stripe,
            Manner::Draft | Manner::Waits | Manner::Accepts => Dialect::Ietf,
        };
        assert_eq!(report.dialect, dialect, "{manner:?}");
        assert!(report.passed(true));
    }
}

/// Each hole, and the probes that fail because of it.
const HOLES: [(Hole, &[Id]); 17] = [
    (
        Hole::NoReservation,
        &[
            Id::DifferentBodyInFlight,
            Id::ConcurrentDuplicates,
            Id::DisconnectAfterEffect,
            Id::SlowOperation,
            Id::CrashAndRestart,
        ],
    ),
    (
        Hole::ForgetsBody,
        &[Id::DifferentBody, Id::DifferentBodyInFlight],
    ),
    (
        Hole::KeyWithBody,
        &[
            Id::SameJsonReordered,
            Id::DifferentBody,
            Id::DifferentBodyInFlight,
        ],
    ),
    (Hole::FreesOnDisconnect, &[Id::DisconnectAfterEffect]),
    (
        Hole::ReleasesAfterLease,
        &[Id::DisconnectAfterEffect, Id::SlowOperation],
    ),
    (Hole::Truncates, &[Id::OversizedResponse]),
    (Hole::ForgetsLarge, &[Id::OversizedResponse]),
    (Hole::RetriesTimeout, &[Id::TimeoutAfterEffect]),
    (Hole::RetriesDeclined, &[Id::DeclinedIsFinal]),
    (Hole::CrashForgets, &[Id::CrashAndRestart]),
    (Hole::FreesOnStoreFailure, &[Id::FailedCompletion]),
    (Hole::NoTenant, &[Id::TenantIsolation]),
    (Hole::IgnoresMalformed, &[Id::MalformedKey]),
    (Hole::IgnoresOversized, &[Id::OversizedKey]),
    (Hole::CutsKeys, &[Id::OversizedKey]),
    (
        Hole::SharesNoKey,
        &[Id::DifferentBody, Id::DifferentBodyInFlight, Id::MissingKey],
    ),
    (Hole::ReplaysAs200, &[Id::Replay]),
];

#[tokio::test(start_paused = true)]
async fn each_hole_fails_the_probes_that_look_for_it() {
    for (hole, probes) in HOLES {
        let report = found(hole, Manner::Draft).await;
        assert_eq!(
            with(&report, Verdict::Fail),
            probes,
            "{hole:?}\n{}",
            report.json()
        );
        assert_eq!(
            with(&report, Verdict::NotSeen),
            [],
            "{hole:?}\n{}",
            report.json()
        );
        assert!(!report.passed(false));
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_counter_answers_are_judged_and_nobody_is_accused() {
    // Every answer is its own, so that the safe probes need no counter.
    let mut blind = target();
    blind.counter = None;
    let memory = Memory::new(Hole::None, Manner::Draft);
    let report = check(&blind, &memory).await.unwrap();
    assert_eq!(with(&report, Verdict::Fail), [], "{}", report.json());
    // Whether a client that was gone at once was ever heard is not in any answer.
    let unseen = with(&report, Verdict::NotSeen);
    assert_eq!(unseen, [Id::DisconnectAfterEffect], "{}", report.json());

    // Answers that say nothing: what cannot be seen is said, and is no failure unless asked.
    let memory = Memory::new(Hole::None, Manner::Mute);
    let report = check(&blind, &memory).await.unwrap();
    assert_eq!(with(&report, Verdict::Fail), [], "{}", report.json());
    let unseen = with(&report, Verdict::NotSeen);
    assert!(
        unseen.contains(&Id::Replay) && unseen.contains(&Id::ConcurrentDuplicates),
        "{unseen:?}"
    );
    assert!(report.passed(false) && !report.passed(true));

    // Two executions that are answered differently are found without.
    let memory = Memory::new(Hole::NoReservation, Manner::Draft);
    let report = check(&blind, &memory).await.unwrap();
    let failed = with(&report, Verdict::Fail);
    assert!(failed.contains(&Id::ConcurrentDuplicates), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn what_was_not_asked_for_is_skipped_and_what_is_missing_is_named() {
    let memory = Memory::new(Hole::None, Manner::Draft);
    let mut safe = target();
    safe.disruptive = false;
    safe.other_headers.clear();
    let report = check(&safe, &memory).await.unwrap();
    assert_eq!(
        (report.counts.pass, report.counts.skipped),
        (8, 8),
        "{}",
        report.json()
    );

    let mut bare = target();
    bare.cases = semel_check::Cases::default();
    bare.commands = semel_check::Commands::default();
    let report = check(&bare, &memory).await.unwrap();
    let missing = [
        (Id::DeclinedIsFinal, "--case declined="),
        (Id::SlowOperation, "--case slow="),
        (Id::OversizedResponse, "--case large="),
        (Id::TimeoutAfterEffect, "--case timeout="),
        (Id::FailedCompletion, "--break-store-command"),
        (Id::CrashAndRestart, "--crash-command"),
    ];
    assert_eq!(with(&report, Verdict::NotSeen), missing.map(|(id, _)| id));
    for (id, flag) in missing {
        let finding = report
            .probes
            .iter()
            .find(|finding| finding.id == id)
            .unwrap();
        assert!(finding.seen.contains(flag), "{}", finding.seen);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_judged_where_nothing_is_learned() {
    let memory = Memory::new(Hole::None, Manner::Draft);
    let mut unquoted = target();
    unquoted.dialect = Chosen::Fixed(Dialect::Stripe);
    let refused = check(&unquoted, &memory).await.unwrap_err();
    assert!(matches!(refused, Error::NotAccepted { .. }), "{refused}");
    assert_eq!(memory.api.all_effects(), 0);

    let mut miscounted = target();
    miscounted.counter = Some(Counter::Command("count nothing".to_owned()));
    let refused = check(&miscounted, &memory).await.unwrap_err();
    assert!(matches!(refused, Error::Counter(_)), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn secrets_are_not_told() {
    let memory = Memory::new(Hole::NoReservation, Manner::Draft);
    let report = check(&target(), &memory).await.unwrap();
    for told in [
        report.json(),
        report.junit(false),
        report.table(Some(80), true),
    ] {
        assert!(
            !told.contains("first-customer") && !told.contains("other-customer"),
            "{told}"
        );
    }
}
