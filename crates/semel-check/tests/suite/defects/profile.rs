//! The profile of a target, which is measured before the probes.

use semel_check::{Counter, Dialect, DialectChoice, Error, ProbeId, Verdict, check};

use super::support::{ApiStyle, Defect, TestEnvironment, target};
use super::{STYLES, run_check, verdict};

#[tokio::test(start_paused = true)]
async fn the_dialect_is_detected_from_the_targets_behavior() {
    for style in STYLES.into_iter().chain([ApiStyle::Later]) {
        let dialect = match style {
            style if style.is_plain() => Dialect::Stripe,
            _ => Dialect::Ietf,
        };
        for counted in [true, false] {
            let mut target = target();
            target.disruptive = false;
            if !counted {
                target.counter = None;
            }
            let report = run_check(Defect::None, style, &target).await;
            assert_eq!(report.dialect, dialect, "{style:?}, counted: {counted}");
        }
    }
}

/// A target that ignores a key format does not use that dialect.
#[tokio::test(start_paused = true)]
async fn an_ignored_key_format_is_not_detected_as_the_dialect() {
    for counter in [target().counter, None] {
        let mut target = target();
        target.disruptive = false;
        target.counter = counter;
        let report = run_check(Defect::IgnoresMalformed, ApiStyle::Draft, &target).await;
        assert_eq!(report.dialect, Dialect::Ietf, "{}", report.json());
    }
}

/// A response that echoes the request is the same for two executions.
#[tokio::test(start_paused = true)]
async fn a_response_that_echoes_the_request_makes_replay_not_seen() {
    let mut uncounted = target();
    uncounted.counter = None;
    let report = run_check(Defect::None, ApiStyle::Mute, &uncounted).await;
    let seen = verdict(&report, ProbeId::Replay);
    assert_eq!(seen, Verdict::NotSeen, "{}", report.json());
}

#[tokio::test(start_paused = true)]
async fn a_target_that_accepts_no_key_is_an_error_without_probes() {
    let memory = TestEnvironment::new(Defect::None, ApiStyle::Draft);
    let mut unquoted = target();
    unquoted.dialect = DialectChoice::Fixed(Dialect::Stripe);
    let refused = check(&unquoted, &memory).await.unwrap_err();
    assert!(matches!(refused, Error::NotAccepted { .. }), "{refused}");
    assert_eq!(memory.api.all_effects(), 0);

    // The error reports both key formats.
    let mut elsewhere = target();
    elsewhere.key_header = "X-Key".to_owned();
    let refused = check(&elsewhere, &memory).await.unwrap_err().to_string();
    assert_eq!(
        refused.matches(r#""code":"missing""#).count(),
        2,
        "{refused}"
    );

    let mut miscounted = target();
    miscounted.counter = Some(Counter::Command("count nothing".to_owned()));
    let refused = check(&miscounted, &memory).await.unwrap_err();
    assert!(matches!(refused, Error::Counter(_)), "{refused}");
}
