//! A probe that cannot observe its target neither passes nor fails.

use semel_check::{Cases, ProbeId, Report, Target, Verdict, check};

use super::support::{ApiStyle, Defect, TestEnvironment, body, counter, target};
use super::{DEFECTS, STYLES, probes_with, run_check, verdict};

/// The probes for each defect of the table fail or are not seen.
async fn no_defect_passes(style: ApiStyle, target: &Target) {
    for (defect, probes) in DEFECTS {
        let report = run_check(defect, style, target).await;
        for id in probes {
            let verdict = verdict(&report, *id);
            assert!(
                matches!(verdict, Verdict::Fail | Verdict::NotSeen),
                "{defect:?}, {style:?}, {id:?}: {verdict:?}\n{}",
                report.json()
            );
        }
    }
}

/// A correct API never fails a probe.
async fn no_correct_api_fails(target: &Target) {
    for style in STYLES.into_iter().chain([ApiStyle::Later]) {
        let report = run_check(Defect::None, style, target).await;
        let failed = probes_with(&report, Verdict::Fail);
        assert_eq!(failed, [], "{style:?}\n{}", report.json());
    }
}

fn uncounted() -> Target {
    let mut target = target();
    target.counter = None;
    target
}

#[tokio::test(start_paused = true)]
async fn without_a_counter_no_defect_passes() {
    no_defect_passes(ApiStyle::Draft, &uncounted()).await;
    no_correct_api_fails(&uncounted()).await;
}

/// Responses without a replay mark that are equal for two executions.
#[tokio::test(start_paused = true)]
async fn without_a_counter_and_distinct_responses_no_defect_passes() {
    for (defect, probes) in DEFECTS {
        let report = run_check(defect, ApiStyle::Mute, &uncounted()).await;
        for id in probes {
            // Keys are optional in this style, and its bodies are compared raw.
            let other = matches!(
                (defect, id),
                (Defect::KeyWithBody, ProbeId::SameJsonReordered)
            );
            let verdict = verdict(&report, *id);
            assert!(
                other || matches!(verdict, Verdict::Fail | Verdict::NotSeen),
                "{defect:?}, {id:?}: {verdict:?}\n{}",
                report.json()
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn with_a_counter_per_key_or_in_total_no_defect_passes() {
    for command in ["count-key {key}", "count-all"] {
        let mut target = target();
        target.counter = Some(counter(command));
        no_defect_passes(ApiStyle::Draft, &target).await;
        no_correct_api_fails(&target).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_counter_per_key_sees_all_requests_with_a_key() {
    let mut target = target();
    target.counter = Some(counter("count-key {key}"));
    for style in STYLES {
        let report = run_check(Defect::None, style, &target).await;
        assert!(report.passed(false), "{style:?}\n{}", report.json());
        // Requests without a valid key are not counted, and some responses are indistinguishable.
        let unseen = probes_with(&report, Verdict::NotSeen);
        let most: &[ProbeId] = match style {
            ApiStyle::Mute | ApiStyle::Unique => &[ProbeId::MalformedKey],
            _ => &[],
        };
        assert_eq!(unseen, most, "{style:?}\n{}", report.json());
    }
}

#[tokio::test(start_paused = true)]
async fn with_cases_by_body_no_defect_passes() {
    let mut target = target();
    target.cases.slow = Some(body("slow"));
    target.cases.linger = Some(body("linger"));
    target.cases.timeout = Some(body("timeout"));
    target.cases.declined = Some(body("declined"));
    target.cases.large = Some(body("large"));
    no_defect_passes(ApiStyle::Draft, &target).await;
    no_correct_api_fails(&target).await;
}

#[tokio::test(start_paused = true)]
async fn responses_of_an_intermediary_neither_pass_nor_fail() {
    for status in [0, 401, 403, 404, 405, 407, 408, 429, 502, 503] {
        for target in [target(), uncounted()] {
            for style in [ApiStyle::Draft, ApiStyle::Opaque] {
                let report = run_check(Defect::TurnsAway(status), style, &target).await;
                let text = format!("{status}, {style:?}\n{}", report.json());
                assert_eq!(probes_with(&report, Verdict::Fail), [], "{text}");
                assert_eq!(probes_with(&report, Verdict::Pass), [], "{text}");
            }
        }
    }
}

/// Without a replay mark, only the counter distinguishes a replayed 504 from one of a gateway.
#[tokio::test(start_paused = true)]
async fn a_replayed_timeout_passes_only_with_a_counter() {
    for (target, expected) in [(target(), Verdict::Pass), (uncounted(), Verdict::NotSeen)] {
        let report = run_check(Defect::None, ApiStyle::KeepsTimeout, &target).await;
        let seen = verdict(&report, ProbeId::TimeoutAfterEffect);
        assert_eq!(seen, expected, "{}", report.json());
    }
}

/// With one connection no requests race.
#[tokio::test(start_paused = true)]
async fn with_one_connection_race_probes_are_not_seen() {
    for target in [target(), uncounted()] {
        let mut memory = TestEnvironment::new(Defect::None, ApiStyle::Draft);
        memory.most = 1;
        let report = check(&target, &memory).await.unwrap();
        assert_eq!(probes_with(&report, Verdict::Fail), [], "{}", report.json());
        for id in [
            ProbeId::ConcurrentDuplicates,
            ProbeId::DifferentBodyInFlight,
        ] {
            assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
        }
    }
}

/// A response that only misuse gets does not show how the API treats the key.
#[tokio::test(start_paused = true)]
async fn misuse_answered_without_a_refusal_is_not_seen() {
    for status in [0, 401, 403, 429, 500, 503] {
        for target in [target(), uncounted()] {
            let report = run_check(Defect::MisuseIs(status), ApiStyle::Draft, &target).await;
            let text = format!("{status}\n{}", report.json());
            assert_eq!(probes_with(&report, Verdict::Fail), [], "{text}");
            for id in [ProbeId::DifferentBody, ProbeId::DifferentBodyInFlight] {
                assert_eq!(verdict(&report, id), Verdict::NotSeen, "{text}");
            }
        }
    }
}

/// Unusual but correct: only a counter shows that.
#[tokio::test(start_paused = true)]
async fn an_error_for_a_duplicate_passes_only_with_a_counter() {
    let defect = Defect::RunningIs(500);
    let report = run_check(defect, ApiStyle::Draft, &target()).await;
    assert!(report.passed(true), "{}", report.json());
    let report = run_check(defect, ApiStyle::Draft, &uncounted()).await;
    assert_eq!(probes_with(&report, Verdict::Fail), [], "{}", report.json());
    for id in [ProbeId::ConcurrentDuplicates, ProbeId::SlowOperation] {
        assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
    }
}

/// Requests that run one at a time do not race.
#[tokio::test(start_paused = true)]
async fn behind_a_concurrency_limit_race_probes_are_not_seen() {
    for target in [target(), uncounted()] {
        let mut target = target;
        target.cases.slow = None;
        let report = run_check(Defect::Limits, ApiStyle::Draft, &target).await;
        assert_eq!(probes_with(&report, Verdict::Fail), [], "{}", report.json());
        for id in [
            ProbeId::ConcurrentDuplicates,
            ProbeId::DifferentBodyInFlight,
        ] {
            assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
        }
    }
}

/// If every retry is refused while other requests succeed, the API lost the response.
#[tokio::test(start_paused = true)]
async fn a_retry_refused_forever_fails_the_replay_probe() {
    for status in [409, 410, 422, 500] {
        let report = run_check(Defect::TurnsAway(status), ApiStyle::Draft, &target()).await;
        let seen = verdict(&report, ProbeId::Replay);
        assert_eq!(seen, Verdict::Fail, "{status}\n{}", report.json());
    }
    // A total counter would count the control request, so the probe does not send it.
    let mut all = target();
    all.counter = Some(counter("count-all"));
    let report = run_check(Defect::TurnsAway(500), ApiStyle::Draft, &all).await;
    let seen = verdict(&report, ProbeId::Replay);
    assert_eq!(seen, Verdict::NotSeen, "{}", report.json());
}

/// A 500 does not show whether the request was executed.
#[tokio::test(start_paused = true)]
async fn a_500_is_not_counted_as_a_refusal() {
    let report = run_check(Defect::TurnsAway(500), ApiStyle::Draft, &uncounted()).await;
    for id in [
        ProbeId::MissingKey,
        ProbeId::MalformedKey,
        ProbeId::OversizedKey,
        ProbeId::TimeoutAfterEffect,
        ProbeId::FailedCompletion,
    ] {
        assert_eq!(verdict(&report, id), Verdict::NotSeen, "{}", report.json());
    }
    // The retry is sent twice here, and the first of the two was executed.
    let report = run_check(Defect::BreaksOnce, ApiStyle::Draft, &uncounted()).await;
    assert_eq!(
        verdict(&report, ProbeId::Replay),
        Verdict::NotSeen,
        "{}",
        report.json()
    );
    let report = run_check(Defect::BreaksOnce, ApiStyle::Draft, &target()).await;
    assert_eq!(
        verdict(&report, ProbeId::Replay),
        Verdict::Fail,
        "{}",
        report.json()
    );
}

#[tokio::test(start_paused = true)]
async fn without_a_counter_distinct_responses_suffice_for_most_probes() {
    // Every response is distinct, so the safe probes need no counter.
    let report = run_check(Defect::None, ApiStyle::Draft, &uncounted()).await;
    // No response shows whether the API received the request of a disconnected client.
    let unseen = probes_with(&report, Verdict::NotSeen);
    assert_eq!(
        unseen,
        [ProbeId::DisconnectAfterEffect],
        "{}",
        report.json()
    );

    // Indistinguishable responses: "not seen" fails only with `strict`.
    let report = run_check(Defect::None, ApiStyle::Mute, &uncounted()).await;
    let unseen = probes_with(&report, Verdict::NotSeen);
    assert!(
        unseen.contains(&ProbeId::Replay) && unseen.contains(&ProbeId::ConcurrentDuplicates),
        "{unseen:?}"
    );
    assert!(report.passed(false) && !report.passed(true));

    // Without cases, the race alone shows two executions with different responses.
    let mut racing = uncounted();
    racing.cases = Cases::default();
    for defect in [Defect::NoReservation, Defect::KeyWithBody] {
        let report = run_check(defect, ApiStyle::Draft, &racing).await;
        let seen = verdict(&report, ProbeId::DifferentBodyInFlight);
        assert_eq!(seen, Verdict::Fail, "{defect:?}\n{}", report.json());
    }
}

/// The API charges first, and then returns the error of a unique index.
#[tokio::test(start_paused = true)]
async fn a_conflict_after_the_effect_is_not_seen_without_a_counter() {
    let report = run_check(Defect::ConflictsLate, ApiStyle::Draft, &uncounted()).await;
    let seen = verdict(&report, ProbeId::ConcurrentDuplicates);
    assert_eq!(seen, Verdict::NotSeen, "{}", report.json());
}

/// If the API accepts every operation and executes it later, a 202 is an ordinary response.
#[tokio::test(start_paused = true)]
async fn accepted_responses_are_compared_without_waiting() {
    let start = tokio::time::Instant::now();
    let mut safe = uncounted();
    safe.disruptive = false;
    safe.cases = Cases::default();
    let report = run_check(Defect::None, ApiStyle::Later, &safe).await;
    assert_eq!(report.counts.not_seen, 0, "{}", report.json());
    assert_eq!(report.counts.fail, 0, "{}", report.json());
    assert!(
        start.elapsed() < safe.operation_timeout,
        "{:?}",
        start.elapsed()
    );

    let report = run_check(Defect::None, ApiStyle::Later, &target()).await;
    // The operation ends for the client when it is accepted.
    let unseen = probes_with(&report, Verdict::NotSeen);
    assert_eq!(unseen, [ProbeId::SlowOperation], "{}", report.json());
    for target in [target(), safe] {
        let report = run_check(Defect::NoReservation, ApiStyle::Later, &target).await;
        let seen = verdict(&report, ProbeId::ConcurrentDuplicates);
        assert_eq!(seen, Verdict::Fail, "{}", report.json());
    }
}

fn note(report: &Report, id: ProbeId) -> String {
    let mut probes = report.probes.iter();
    let found = probes.find(|finding| finding.id == id).unwrap();
    found.notes.join("; ")
}

#[tokio::test(start_paused = true)]
async fn a_lagging_counter_is_waited_for() {
    for (defect, probes) in DEFECTS.into_iter().chain([(Defect::None, &[][..])]) {
        let mut memory = TestEnvironment::new(defect, ApiStyle::Draft);
        memory.lag = std::time::Duration::from_millis(1500);
        let report = check(&target(), &memory).await.unwrap();
        let failed = probes_with(&report, Verdict::Fail);
        assert_eq!(failed, probes, "{defect:?}\n{}", report.json());
        let noted = note(&report, ProbeId::Replay);
        assert!(noted.contains("the counter shows effects late"), "{noted}");
    }
}
