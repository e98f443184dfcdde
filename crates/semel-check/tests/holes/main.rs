//! A correct API passes every probe, and each hole fails those that look for it, and no other.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "a test may fail loudly"
)]

mod learned;
mod premises;
mod support;
mod unseen;

use semel_check::{Cases, Id, Report, Target, Verdict, check};
use support::{Hole, Manner, Memory, target};

async fn found(hole: Hole, manner: Manner, target: &Target) -> Report {
    check(target, &Memory::new(hole, manner)).await.unwrap()
}

fn verdict(report: &Report, id: Id) -> Verdict {
    let mut probes = report.probes.iter();
    probes.find(|finding| finding.id == id).unwrap().verdict
}

fn with(report: &Report, verdict: Verdict) -> Vec<Id> {
    let found = report
        .probes
        .iter()
        .filter(|finding| finding.verdict == verdict);
    found.map(|finding| finding.id).collect()
}

/// All ways to be correct.
const MANNERS: [Manner; 10] = [
    Manner::Draft,
    Manner::Optional,
    Manner::Lenient,
    Manner::Waits,
    Manner::Accepts,
    Manner::Plain,
    Manner::Mute,
    Manner::Opaque,
    Manner::Unique,
    Manner::KeepsTimeout,
];

#[tokio::test(start_paused = true)]
async fn a_correct_api_passes_all_probes_whatever_its_manner() {
    for manner in MANNERS {
        let report = found(Hole::None, manner, &target()).await;
        assert_eq!(
            with(&report, Verdict::Pass),
            Id::ALL,
            "{manner:?}\n{}",
            report.json()
        );
        assert!(report.passed(true));
    }
}

/// Each hole, and the probes that fail because of it.
const HOLES: [(Hole, &[Id]); 21] = [
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
        Hole::ConflictsLate,
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
    (Hole::FreesAndWorksOn, &[Id::DisconnectAfterEffect]),
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
    (Hole::SharesEmpty, &[Id::MissingKey]),
    (Hole::SharesBlank, &[Id::MalformedKey]),
    (Hole::ReplaysAs200, &[Id::Replay]),
];

#[tokio::test(start_paused = true)]
async fn each_hole_fails_the_probes_that_look_for_it() {
    for (hole, probes) in HOLES {
        let report = found(hole, Manner::Draft, &target()).await;
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
    bare.cases = Cases::default();
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
