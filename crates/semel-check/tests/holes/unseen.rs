//! What cannot be seen is neither passed nor failed.

use semel_check::{Cases, Id, Report, Target, Verdict, check};

use crate::support::{Hole, Manner, Memory, body, counter, target};
use crate::{HOLES, MANNERS, found, verdict, with};

/// Every hole of the table is failed or not seen by the probes that it is about.
async fn no_hole_passes(manner: Manner, target: &Target) {
    for (hole, probes) in HOLES {
        let report = found(hole, manner, target).await;
        for id in probes {
            let verdict = verdict(&report, *id);
            assert!(
                matches!(verdict, Verdict::Fail | Verdict::NotSeen),
                "{hole:?}, {manner:?}, {id:?}: {verdict:?}\n{}",
                report.json()
            );
        }
    }
}

/// A correct API is never accused.
async fn nobody_is_accused(target: &Target) {
    for manner in MANNERS.into_iter().chain([Manner::Later]) {
        let report = found(Hole::None, manner, target).await;
        let failed = with(&report, Verdict::Fail);
        assert_eq!(failed, [], "{manner:?}\n{}", report.json());
    }
}

fn uncounted() -> Target {
    let mut target = target();
    target.counter = None;
    target
}

#[tokio::test(start_paused = true)]
async fn without_a_counter_no_hole_passes() {
    no_hole_passes(Manner::Draft, &uncounted()).await;
    nobody_is_accused(&uncounted()).await;
}

/// Answers that say nothing: neither a mark, nor anything that two executions differ by.
#[tokio::test(start_paused = true)]
async fn without_a_counter_and_without_a_word_no_hole_passes() {
    for (hole, probes) in HOLES {
        let report = found(hole, Manner::Mute, &uncounted()).await;
        for id in probes {
            // Keys are optional in this manner, and its bodies are compared raw.
            let other = matches!((hole, id), (Hole::KeyWithBody, Id::SameJsonReordered));
            let verdict = verdict(&report, *id);
            assert!(
                other || matches!(verdict, Verdict::Fail | Verdict::NotSeen),
                "{hole:?}, {id:?}: {verdict:?}\n{}",
                report.json()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn counters_by_key_and_of_everything_let_no_hole_pass() {
    for command in ["count-key {key}", "count-all"] {
        let mut target = target();
        target.counter = Some(counter(command));
        no_hole_passes(Manner::Draft, &target).await;
        nobody_is_accused(&target).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_counter_by_key_sees_what_has_a_key() {
    let mut target = target();
    target.counter = Some(counter("count-key {key}"));
    for manner in MANNERS {
        let report = found(Hole::None, manner, &target).await;
        assert!(report.passed(false), "{manner:?}\n{}", report.json());
        // What is no key is not counted, and some answers say nothing.
        let unseen = with(&report, Verdict::NotSeen);
        let most: &[Id] = match manner {
            Manner::Mute | Manner::Unique => &[Id::MalformedKey],
            _ => &[],
        };
        assert_eq!(unseen, most, "{manner:?}\n{}", report.json());
    }
}

#[tokio::test(start_paused = true)]
async fn cases_by_body_let_no_hole_pass() {
    let mut target = target();
    target.cases.slow = Some(body("slow"));
    target.cases.linger = Some(body("linger"));
    target.cases.timeout = Some(body("timeout"));
    target.cases.declined = Some(body("declined"));
    target.cases.large = Some(body("large"));
    no_hole_passes(Manner::Draft, &target).await;
    nobody_is_accused(&target).await;
}

#[tokio::test(start_paused = true)]
async fn what_stands_before_an_api_is_not_taken_for_it() {
    for status in [0, 401, 403, 404, 405, 407, 408, 429, 502, 503] {
        for target in [target(), uncounted()] {
            for manner in [Manner::Draft, Manner::Opaque] {
                let report = found(Hole::TurnsAway(status), manner, &target).await;
                let told = format!("{status}, {manner:?}\n{}", report.json());
                assert_eq!(with(&report, Verdict::Fail), [], "{told}");
                assert_eq!(with(&report, Verdict::Pass), [], "{told}");
            }
        }
    }
}

/// Without a mark, only the counter tells a 504 that is given again from a gateway's word.
#[tokio::test(start_paused = true)]
async fn a_timeout_that_is_given_again_passes_only_where_its_effect_is_counted() {
    for (target, expected) in [(target(), Verdict::Pass), (uncounted(), Verdict::NotSeen)] {
        let report = found(Hole::None, Manner::KeepsTimeout, &target).await;
        let seen = verdict(&report, Id::TimeoutAfterEffect);
        assert_eq!(seen, expected, "{}", report.json());
    }
}

/// With one connection nothing races, and nothing is said of duplicates.
#[tokio::test(start_paused = true)]
async fn connections_that_cannot_be_opened_are_told_of() {
    for target in [target(), uncounted()] {
        let mut memory = Memory::new(Hole::None, Manner::Draft);
        memory.most = 1;
        let report = check(&target, &memory).await.unwrap();
        assert_eq!(with(&report, Verdict::Fail), [], "{}", report.json());
        for id in [Id::ConcurrentDuplicates, Id::DifferentBodyInFlight] {
            assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
        }
    }
}

/// What is said of misuse alone is not what is said of a key.
#[tokio::test(start_paused = true)]
async fn misuse_that_is_not_refused_is_not_seen() {
    for status in [0, 401, 403, 429, 500, 503] {
        for target in [target(), uncounted()] {
            let report = found(Hole::MisuseIs(status), Manner::Draft, &target).await;
            let told = format!("{status}\n{}", report.json());
            assert_eq!(with(&report, Verdict::Fail), [], "{told}");
            for id in [Id::DifferentBody, Id::DifferentBodyInFlight] {
                assert_eq!(verdict(&report, id), Verdict::NotSeen, "{told}");
            }
        }
    }
}

/// Rude, and not wrong: only who counts can tell.
#[tokio::test(start_paused = true)]
async fn an_error_for_a_duplicate_needs_a_counter() {
    let hole = Hole::RunningIs(500);
    let report = found(hole, Manner::Draft, &target()).await;
    assert!(report.passed(true), "{}", report.json());
    let report = found(hole, Manner::Draft, &uncounted()).await;
    assert_eq!(with(&report, Verdict::Fail), [], "{}", report.json());
    for id in [Id::ConcurrentDuplicates, Id::SlowOperation] {
        assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
    }
}

/// One at a time is no race.
#[tokio::test(start_paused = true)]
async fn a_limiter_hides_races() {
    for target in [target(), uncounted()] {
        let mut target = target;
        target.cases.slow = None;
        let report = found(Hole::Limits, Manner::Draft, &target).await;
        assert_eq!(with(&report, Verdict::Fail), [], "{}", report.json());
        for id in [Id::ConcurrentDuplicates, Id::DifferentBodyInFlight] {
            assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
        }
    }
}

/// A retry that is refused for ever, where others are served, has lost its answer.
#[tokio::test(start_paused = true)]
async fn a_key_whose_answer_is_lost_is_the_apis_own_fault() {
    for status in [409, 410, 422, 500] {
        let report = found(Hole::TurnsAway(status), Manner::Draft, &target()).await;
        let seen = verdict(&report, Id::Replay);
        assert_eq!(seen, Verdict::Fail, "{status}\n{}", report.json());
    }
    // Whether others are served is not tried where that would be counted, too.
    let mut all = target();
    all.counter = Some(counter("count-all"));
    let report = found(Hole::TurnsAway(500), Manner::Draft, &all).await;
    let seen = verdict(&report, Id::Replay);
    assert_eq!(seen, Verdict::NotSeen, "{}", report.json());
}

/// By 500 nobody is told whether anything was done.
#[tokio::test(start_paused = true)]
async fn an_error_is_no_refusal() {
    let report = found(Hole::TurnsAway(500), Manner::Draft, &uncounted()).await;
    for id in [
        Id::MissingKey,
        Id::MalformedKey,
        Id::OversizedKey,
        Id::TimeoutAfterEffect,
        Id::FailedCompletion,
    ] {
        assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
    }
    // Two tries make one retry here, and the first of them was executed.
    let report = found(Hole::BreaksOnce, Manner::Draft, &uncounted()).await;
    assert_eq!(
        verdict(&report, Id::Replay),
        Verdict::NotSeen,
        "{}",
        report.json()
    );
    let report = found(Hole::BreaksOnce, Manner::Draft, &target()).await;
    assert_eq!(
        verdict(&report, Id::Replay),
        Verdict::Fail,
        "{}",
        report.json()
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_counter_most_is_seen_all_the_same() {
    // Every answer is its own, so that the safe probes need no counter.
    let report = found(Hole::None, Manner::Draft, &uncounted()).await;
    // Whether a client that was gone at once was ever heard is not in any answer.
    let unseen = with(&report, Verdict::NotSeen);
    assert_eq!(unseen, [Id::DisconnectAfterEffect], "{}", report.json());

    // Answers that say nothing: what cannot be seen is said, and is no failure unless asked.
    let report = found(Hole::None, Manner::Mute, &uncounted()).await;
    let unseen = with(&report, Verdict::NotSeen);
    assert!(
        unseen.contains(&Id::Replay) && unseen.contains(&Id::ConcurrentDuplicates),
        "{unseen:?}"
    );
    assert!(report.passed(false) && !report.passed(true));

    // Two executions that are answered differently are found without, by their race alone.
    let mut racing = uncounted();
    racing.cases = Cases::default();
    for hole in [Hole::NoReservation, Hole::KeyWithBody] {
        let report = found(hole, Manner::Draft, &racing).await;
        let seen = verdict(&report, Id::DifferentBodyInFlight);
        assert_eq!(seen, Verdict::Fail, "{hole:?}\n{}", report.json());
    }
}

/// A charge, and then an error of the index that tells duplicates apart.
#[tokio::test(start_paused = true)]
async fn an_error_after_the_charge_is_not_taken_for_a_refusal() {
    let report = found(Hole::ConflictsLate, Manner::Draft, &uncounted()).await;
    let seen = verdict(&report, Id::ConcurrentDuplicates);
    assert_eq!(seen, Verdict::NotSeen, "{}", report.json());
}

/// Where every operation is accepted and done later, a 202 is an answer like any other.
#[tokio::test(start_paused = true)]
async fn what_is_accepted_is_compared_and_not_waited_for() {
    let start = tokio::time::Instant::now();
    let mut safe = uncounted();
    safe.disruptive = false;
    safe.cases = Cases::default();
    let report = found(Hole::None, Manner::Later, &safe).await;
    assert_eq!(report.counts.not_seen, 0, "{}", report.json());
    assert_eq!(report.counts.fail, 0, "{}", report.json());
    assert!(
        start.elapsed() < safe.operation_timeout,
        "{:?}",
        start.elapsed()
    );

    let report = found(Hole::None, Manner::Later, &target()).await;
    // It is over as soon as it is accepted.
    let unseen = with(&report, Verdict::NotSeen);
    assert_eq!(unseen, [Id::SlowOperation], "{}", report.json());
    for target in [target(), safe] {
        let report = found(Hole::NoReservation, Manner::Later, &target).await;
        let seen = verdict(&report, Id::ConcurrentDuplicates);
        assert_eq!(seen, Verdict::Fail, "{}", report.json());
    }
}

fn note(report: &Report, id: Id) -> String {
    let mut probes = report.probes.iter();
    let found = probes.find(|finding| finding.id == id).unwrap();
    found.notes.join("; ")
}

#[tokio::test(start_paused = true)]
async fn a_counter_that_is_behind_is_waited_for() {
    for (hole, probes) in HOLES.into_iter().chain([(Hole::None, &[][..])]) {
        let mut memory = Memory::new(hole, Manner::Draft);
        memory.lag = std::time::Duration::from_millis(1500);
        let report = check(&target(), &memory).await.unwrap();
        let failed = with(&report, Verdict::Fail);
        assert_eq!(failed, probes, "{hole:?}\n{}", report.json());
        let noted = note(&report, Id::Replay);
        assert!(noted.contains("the counter shows effects late"), "{noted}");
    }
}
