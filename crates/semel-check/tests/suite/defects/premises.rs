//! A probe whose precondition did not occur returns "not seen".

use std::time::Duration;

use semel_check::{Cases, Commands, Finding, ProbeId, Target, Verdict};

use super::run_check;
use super::support::{ApiStyle, Defect, case, target};

async fn finding(defect: Defect, target: &Target, id: ProbeId) -> Finding {
    let report = run_check(defect, ApiStyle::Draft, target).await;
    let mut probes = report.probes.into_iter();
    probes.find(|finding| finding.id == id).unwrap()
}

/// Asserts the verdict, and that the finding contains `part`.
async fn assert_verdict(
    defect: Defect,
    target: &Target,
    id: ProbeId,
    verdict: Verdict,
    part: &str,
) {
    let finding = finding(defect, target, id).await;
    assert_eq!(finding.verdict, verdict, "{defect:?}: {finding:#?}");
    assert!(finding.seen.contains(part), "{defect:?}: {finding:#?}");
}

/// An operation whose client disconnected may end long after the retry.
#[tokio::test(start_paused = true)]
async fn an_effect_after_the_retry_is_waited_for() {
    let mut slow = target();
    slow.cases.linger = None;
    let id = ProbeId::DisconnectAfterEffect;
    let twice = "it was executed 2 times";
    assert_verdict(Defect::FreesAndWorksOn, &slow, id, Verdict::Fail, twice).await;
    // Without a counter, the response shows that the first execution ended.
    slow.counter = None;
    let other = "a retry got a different response";
    assert_verdict(Defect::FreesAndWorksOn, &slow, id, Verdict::Fail, other).await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_outlasts_the_timeout_is_not_seen() {
    let mut endless = target();
    endless.cases.slow = Some(case("slower"));
    endless.cases.linger = None;
    for defect in [
        Defect::None,
        Defect::ReleasesAfterLease,
        Defect::FreesAndWorksOn,
    ] {
        for id in [ProbeId::SlowOperation, ProbeId::DisconnectAfterEffect] {
            let finding = finding(defect, &endless, id).await;
            assert_eq!(
                finding.verdict,
                Verdict::NotSeen,
                "{defect:?}: {finding:#?}"
            );
        }
    }
}

/// Fast enough when it was measured, and too slow in the probe.
#[tokio::test(start_paused = true)]
async fn an_operation_that_takes_longer_than_before_is_not_seen() {
    let mut slowing = target();
    slowing.cases.slow = Some(case("slowing"));
    slowing.cases.linger = None;
    let part = "the operation did not end";
    assert_verdict(
        Defect::None,
        &slowing,
        ProbeId::SlowOperation,
        Verdict::NotSeen,
        part,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_never_happens_is_not_seen() {
    let mut never = target();
    never.cases.slow = None;
    never.cases.linger = Some(case("never"));
    never.operation_timeout = Duration::from_secs(10);
    let part = "the effect did not show";
    for id in [ProbeId::DisconnectAfterEffect, ProbeId::FailedCompletion] {
        let seen = finding(Defect::None, &never, id).await;
        assert_eq!(seen.verdict, Verdict::NotSeen, "{seen:#?}");
    }
    let id = ProbeId::DisconnectAfterEffect;
    assert_verdict(Defect::None, &never, id, Verdict::NotSeen, part).await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_without_an_effect_is_not_seen() {
    let mut early = target();
    early.cases.timeout = Some(case("early_timeout"));
    let id = ProbeId::TimeoutAfterEffect;
    let part = "nothing had been executed";
    assert_verdict(Defect::None, &early, id, Verdict::NotSeen, part).await;

    let mut uncounted = target();
    uncounted.counter = None;
    let seen = finding(Defect::None, &uncounted, id).await;
    assert_eq!(seen.verdict, Verdict::Pass, "{seen:#?}");
    assert!(
        seen.notes.join("").contains("without a counter"),
        "{seen:#?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_store_failure_without_visible_effect_is_not_seen() {
    let id = ProbeId::FailedCompletion;
    let by = |value: &str| {
        let mut target = target();
        target.commands = Commands::default();
        target.cases.store_failure = Some(case(value));
        target
    };
    let heeded = by("store_failure");
    assert_verdict(Defect::None, &heeded, id, Verdict::Pass, "effects: 1").await;
    let defect = Defect::FreesOnStoreFailure;
    assert_verdict(
        defect,
        &heeded,
        id,
        Verdict::Fail,
        "it was executed 2 times",
    )
    .await;
    // The first client got its response, and it was not stored: a refusal of the retry is correct.
    let text = by("acknowledged_failure");
    assert_verdict(Defect::None, &text, id, Verdict::Pass, "retry: 409").await;
    for defect in [Defect::None, Defect::FreesOnStoreFailure] {
        let part = "the case may have had no effect";
        assert_verdict(defect, &by("nothing"), id, Verdict::NotSeen, part).await;
        let part = "the case was refused";
        assert_verdict(defect, &by("declined"), id, Verdict::NotSeen, part).await;
        let part = "nothing had been executed";
        assert_verdict(defect, &by("early_timeout"), id, Verdict::NotSeen, part).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_small_response_does_not_test_oversized_responses() {
    let mut small = target();
    small.cases.large = Some(case("small"));
    let part = "the response was not large";
    for defect in [Defect::None, Defect::Truncates, Defect::ForgetsLarge] {
        assert_verdict(
            defect,
            &small,
            ProbeId::OversizedResponse,
            Verdict::NotSeen,
            part,
        )
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_case_that_does_not_decline_is_not_seen() {
    let id = ProbeId::DeclinedIsFinal;
    let mut accepted = target();
    accepted.cases.declined = Some(case("nothing"));
    let part = "did not decline: 201";
    assert_verdict(Defect::None, &accepted, id, Verdict::NotSeen, part).await;
    let mut conflict = target();
    conflict.cases.declined = Some(case("conflict"));
    let part = "did not decline: 409";
    assert_verdict(Defect::None, &conflict, id, Verdict::NotSeen, part).await;
}

/// Without a case no operation is in progress when the command ends.
#[tokio::test(start_paused = true)]
async fn a_crash_with_nothing_in_progress_detects_only_forgotten_responses() {
    let mut bare = target();
    bare.cases = Cases::default();
    let id = ProbeId::CrashAndRestart;
    let part = "nothing was in progress";
    assert_verdict(Defect::None, &bare, id, Verdict::NotSeen, part).await;
    // A forgotten response is still detected.
    let part = "a retry got a different response";
    assert_verdict(Defect::CrashForgets, &bare, id, Verdict::Fail, part).await;
}
