//! A correct API passes every probe, and each defect fails exactly the probes for it.

mod premises;
mod profile;
mod support;
mod unseen;

use semel_check::{Cases, ProbeId, Report, Target, Verdict, check};
use support::{ApiStyle, Defect, TestEnvironment, target};

async fn run_check(defect: Defect, style: ApiStyle, target: &Target) -> Report {
    check(target, &TestEnvironment::new(defect, style))
        .await
        .unwrap()
}

fn verdict(report: &Report, id: ProbeId) -> Verdict {
    let mut probes = report.probes.iter();
    probes.find(|finding| finding.id == id).unwrap().verdict
}

fn probes_with(report: &Report, verdict: Verdict) -> Vec<ProbeId> {
    let found = report
        .probes
        .iter()
        .filter(|finding| finding.verdict == verdict);
    found.map(|finding| finding.id).collect()
}

/// All styles of a correct API.
const STYLES: [ApiStyle; 10] = [
    ApiStyle::Draft,
    ApiStyle::Optional,
    ApiStyle::Lenient,
    ApiStyle::Waits,
    ApiStyle::Accepts,
    ApiStyle::Plain,
    ApiStyle::Mute,
    ApiStyle::Opaque,
    ApiStyle::Unique,
    ApiStyle::KeepsTimeout,
];

#[tokio::test(start_paused = true)]
async fn a_correct_api_of_any_style_passes_all_probes() {
    for style in STYLES {
        let report = run_check(Defect::None, style, &target()).await;
        assert_eq!(
            probes_with(&report, Verdict::Pass),
            ProbeId::ALL,
            "{style:?}\n{}",
            report.json()
        );
        assert!(report.passed(true));
    }
}

/// Each defect, and the probes that fail because of it.
const DEFECTS: [(Defect, &[ProbeId]); 21] = [
    (
        Defect::NoReservation,
        &[
            ProbeId::DifferentBodyInFlight,
            ProbeId::ConcurrentDuplicates,
            ProbeId::DisconnectAfterEffect,
            ProbeId::SlowOperation,
            ProbeId::CrashAndRestart,
        ],
    ),
    (
        Defect::ConflictsLate,
        &[
            ProbeId::DifferentBodyInFlight,
            ProbeId::ConcurrentDuplicates,
            ProbeId::DisconnectAfterEffect,
            ProbeId::SlowOperation,
            ProbeId::CrashAndRestart,
        ],
    ),
    (
        Defect::ForgetsBody,
        &[ProbeId::DifferentBody, ProbeId::DifferentBodyInFlight],
    ),
    (
        Defect::KeyWithBody,
        &[
            ProbeId::SameJsonReordered,
            ProbeId::DifferentBody,
            ProbeId::DifferentBodyInFlight,
        ],
    ),
    (Defect::FreesOnDisconnect, &[ProbeId::DisconnectAfterEffect]),
    (Defect::FreesAndWorksOn, &[ProbeId::DisconnectAfterEffect]),
    (
        Defect::ReleasesAfterLease,
        &[ProbeId::DisconnectAfterEffect, ProbeId::SlowOperation],
    ),
    (Defect::Truncates, &[ProbeId::OversizedResponse]),
    (Defect::ForgetsLarge, &[ProbeId::OversizedResponse]),
    (Defect::RetriesTimeout, &[ProbeId::TimeoutAfterEffect]),
    (Defect::RetriesDeclined, &[ProbeId::DeclinedIsFinal]),
    (Defect::CrashForgets, &[ProbeId::CrashAndRestart]),
    (Defect::FreesOnStoreFailure, &[ProbeId::FailedCompletion]),
    (Defect::NoTenant, &[ProbeId::TenantIsolation]),
    (Defect::IgnoresMalformed, &[ProbeId::MalformedKey]),
    (Defect::IgnoresOversized, &[ProbeId::OversizedKey]),
    (Defect::CutsKeys, &[ProbeId::OversizedKey]),
    (
        Defect::SharesNoKey,
        &[
            ProbeId::DifferentBody,
            ProbeId::DifferentBodyInFlight,
            ProbeId::MissingKey,
        ],
    ),
    (Defect::SharesEmpty, &[ProbeId::MissingKey]),
    (Defect::SharesBlank, &[ProbeId::MalformedKey]),
    (Defect::ReplaysAs200, &[ProbeId::Replay]),
];

#[tokio::test(start_paused = true)]
async fn each_defect_fails_the_probes_that_look_for_it() {
    for (defect, probes) in DEFECTS {
        let report = run_check(defect, ApiStyle::Draft, &target()).await;
        assert_eq!(
            probes_with(&report, Verdict::Fail),
            probes,
            "{defect:?}\n{}",
            report.json()
        );
        assert_eq!(
            probes_with(&report, Verdict::NotSeen),
            [],
            "{defect:?}\n{}",
            report.json()
        );
        assert!(!report.passed(false));
    }
}

#[tokio::test(start_paused = true)]
async fn unrequested_probes_are_skipped_and_missing_options_are_named() {
    let memory = TestEnvironment::new(Defect::None, ApiStyle::Draft);
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
        (ProbeId::DeclinedIsFinal, "--case declined="),
        (ProbeId::SlowOperation, "--case slow="),
        (ProbeId::OversizedResponse, "--case large="),
        (ProbeId::TimeoutAfterEffect, "--case timeout="),
        (ProbeId::FailedCompletion, "--break-store-command"),
        (ProbeId::CrashAndRestart, "--crash-command"),
    ];
    assert_eq!(
        probes_with(&report, Verdict::NotSeen),
        missing.map(|(id, _)| id)
    );
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
async fn reports_contain_no_tenant_credentials() {
    let memory = TestEnvironment::new(Defect::NoReservation, ApiStyle::Draft);
    let report = check(&target(), &memory).await.unwrap();
    for text in [
        report.json(),
        report.junit(false),
        report.table(Some(80), true),
    ] {
        assert!(
            !text.contains("first-customer") && !text.contains("other-customer"),
            "{text}"
        );
    }
}
