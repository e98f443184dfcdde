//! A probe that did not bring about what it is about has seen nothing.

use std::time::Duration;

use semel_check::{Cases, Commands, Finding, Id, Target, Verdict};

use crate::found;
use crate::support::{Hole, Manner, case, target};

async fn finding(hole: Hole, target: &Target, id: Id) -> Finding {
    let report = found(hole, Manner::Draft, target).await;
    let mut probes = report.probes.into_iter();
    probes.find(|finding| finding.id == id).unwrap()
}

/// Wants this verdict, with this in what was seen.
async fn wants(hole: Hole, target: &Target, id: Id, verdict: Verdict, part: &str) {
    let finding = finding(hole, target, id).await;
    assert_eq!(finding.verdict, verdict, "{hole:?}: {finding:#?}");
    assert!(finding.seen.contains(part), "{hole:?}: {finding:#?}");
}

/// What is cut off may end long after its retry.
#[tokio::test(start_paused = true)]
async fn an_effect_that_comes_after_the_retry_is_waited_for() {
    let mut slow = target();
    slow.cases.linger = None;
    let id = Id::DisconnectAfterEffect;
    let twice = "it was executed 2 times";
    wants(Hole::FreesAndWorksOn, &slow, id, Verdict::Fail, twice).await;
    // Where nobody counts, the first one's end shows in the answer.
    slow.counter = None;
    let other = "a retry was given another answer";
    wants(Hole::FreesAndWorksOn, &slow, id, Verdict::Fail, other).await;
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_does_not_end_in_time_is_not_seen() {
    let mut endless = target();
    endless.cases.slow = Some(case("slower"));
    endless.cases.linger = None;
    for hole in [Hole::None, Hole::ReleasesAfterLease, Hole::FreesAndWorksOn] {
        for id in [Id::SlowOperation, Id::DisconnectAfterEffect] {
            let finding = finding(hole, &endless, id).await;
            assert_eq!(finding.verdict, Verdict::NotSeen, "{hole:?}: {finding:#?}");
        }
    }
}

/// Quick enough when it was measured, and not when it mattered.
#[tokio::test(start_paused = true)]
async fn an_operation_that_takes_longer_than_before_is_not_seen() {
    let mut slowing = target();
    slowing.cases.slow = Some(case("slowing"));
    slowing.cases.linger = None;
    let part = "the operation did not end";
    wants(
        Hole::None,
        &slowing,
        Id::SlowOperation,
        Verdict::NotSeen,
        part,
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_effect_that_never_comes_is_not_waited_out() {
    let mut never = target();
    never.cases.slow = None;
    never.cases.linger = Some(case("never"));
    never.operation_timeout = Duration::from_secs(10);
    let part = "the effect did not show";
    for id in [Id::DisconnectAfterEffect, Id::FailedCompletion] {
        let seen = finding(Hole::None, &never, id).await;
        assert_eq!(seen.verdict, Verdict::NotSeen, "{seen:#?}");
    }
    let id = Id::DisconnectAfterEffect;
    wants(Hole::None, &never, id, Verdict::NotSeen, part).await;
}

#[tokio::test(start_paused = true)]
async fn a_timeout_before_the_effect_is_none_after_it() {
    let mut early = target();
    early.cases.timeout = Some(case("early_timeout"));
    let id = Id::TimeoutAfterEffect;
    let part = "nothing had happened";
    wants(Hole::None, &early, id, Verdict::NotSeen, part).await;

    let mut uncounted = target();
    uncounted.counter = None;
    let seen = finding(Hole::None, &uncounted, id).await;
    assert_eq!(seen.verdict, Verdict::Pass, "{seen:#?}");
    assert!(seen.notes.join("").contains("nobody counts"), "{seen:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_fails_only_where_that_shows() {
    let id = Id::FailedCompletion;
    let by = |value: &str| {
        let mut target = target();
        target.commands = Commands::default();
        target.cases.store_failure = Some(case(value));
        target
    };
    let heeded = by("store_failure");
    wants(Hole::None, &heeded, id, Verdict::Pass, "effects: 1").await;
    let hole = Hole::FreesOnStoreFailure;
    wants(hole, &heeded, id, Verdict::Fail, "it was executed 2 times").await;
    // The first caller had its answer, and nobody has it any more: to say so is no lie.
    let told = by("told_failure");
    wants(Hole::None, &told, id, Verdict::Pass, "retry: 409").await;
    for hole in [Hole::None, Hole::FreesOnStoreFailure] {
        let part = "perhaps the case was not heeded";
        wants(hole, &by("nothing"), id, Verdict::NotSeen, part).await;
        let part = "the case was refused";
        wants(hole, &by("declined"), id, Verdict::NotSeen, part).await;
        let part = "nothing had happened";
        wants(hole, &by("early_timeout"), id, Verdict::NotSeen, part).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_small_answer_is_not_too_large_to_store() {
    let mut small = target();
    small.cases.large = Some(case("small"));
    let part = "the answer was not large";
    for hole in [Hole::None, Hole::Truncates, Hole::ForgetsLarge] {
        wants(hole, &small, Id::OversizedResponse, Verdict::NotSeen, part).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_decline_stays_none() {
    let id = Id::DeclinedIsFinal;
    let mut accepted = target();
    accepted.cases.declined = Some(case("nothing"));
    let part = "did not decline: 201";
    wants(Hole::None, &accepted, id, Verdict::NotSeen, part).await;
    let mut conflict = target();
    conflict.cases.declined = Some(case("conflict"));
    let part = "did not decline: 409";
    wants(Hole::None, &conflict, id, Verdict::NotSeen, part).await;
}

/// Without a case nothing is under way when the command is through.
#[tokio::test(start_paused = true)]
async fn a_crash_with_nothing_under_way_is_half_seen() {
    let mut bare = target();
    bare.cases = Cases::default();
    let id = Id::CrashAndRestart;
    let part = "nothing was under way";
    wants(Hole::None, &bare, id, Verdict::NotSeen, part).await;
    // The other half is seen.
    let part = "a retry was given another answer";
    wants(Hole::CrashForgets, &bare, id, Verdict::Fail, part).await;
}
