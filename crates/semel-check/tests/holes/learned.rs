//! What is learned before anything is judged.

use semel_check::{Chosen, Counter, Dialect, Error, Id, Verdict, check};

use crate::support::{Hole, Manner, Memory, target};
use crate::{MANNERS, found, verdict};

#[tokio::test(start_paused = true)]
async fn the_dialect_is_found_out_by_what_a_target_does() {
    for manner in MANNERS.into_iter().chain([Manner::Later]) {
        let dialect = match manner {
            manner if manner.is_plain() => Dialect::Stripe,
            _ => Dialect::Ietf,
        };
        for counted in [true, false] {
            let mut target = target();
            target.disruptive = false;
            if !counted {
                target.counter = None;
            }
            let report = found(Hole::None, manner, &target).await;
            assert_eq!(report.dialect, dialect, "{manner:?}, counted: {counted}");
        }
    }
}

/// A key that is not read is no key of another dialect.
#[tokio::test(start_paused = true)]
async fn a_spelling_that_is_ignored_is_not_the_dialect() {
    for counter in [target().counter, None] {
        let mut target = target();
        target.disruptive = false;
        target.counter = counter;
        let report = found(Hole::IgnoresMalformed, Manner::Draft, &target).await;
        assert_eq!(report.dialect, Dialect::Ietf, "{}", report.json());
    }
}

/// An answer that is made of the request is the same for two executions of it.
#[tokio::test(start_paused = true)]
async fn an_answer_that_repeats_the_request_tells_no_executions_apart() {
    let mut uncounted = target();
    uncounted.counter = None;
    let report = found(Hole::None, Manner::Mute, &uncounted).await;
    let seen = verdict(&report, Id::Replay);
    assert_eq!(seen, Verdict::NotSeen, "{}", report.json());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_judged_where_nothing_is_learned() {
    let memory = Memory::new(Hole::None, Manner::Draft);
    let mut unquoted = target();
    unquoted.dialect = Chosen::Fixed(Dialect::Stripe);
    let refused = check(&unquoted, &memory).await.unwrap_err();
    assert!(matches!(refused, Error::NotAccepted { .. }), "{refused}");
    assert_eq!(memory.api.all_effects(), 0);

    // Both ways to write a key are told of.
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
