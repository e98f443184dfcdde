//! A key that comes back with another body.

use futures_util::future::join;
use tokio::time::{Duration, sleep};

use crate::answers::{difference, tell};
use crate::caller::{Caller, Operation, Shape};
use crate::json;
use crate::record::{Record, Stop};
use crate::target::{Case, Dialect};
use crate::wire::Answer;

/// A race that was won by luck is lost in one of these.
const ROUNDS: usize = 5;
/// Until then a slow operation has surely begun.
const BEGUN: Duration = Duration::from_millis(300);

pub(super) async fn different_body(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    let operation = caller.operation();
    let other = other_body(caller, &operation, Shape::default())?;
    record.sent(format!(
        "{}, then the same key with {other}, then the first again",
        caller.told(&operation, Shape::default())
    ));
    let counting = caller.counting(&operation).await?;
    let first = caller.first(&operation, Shape::default(), record).await?;
    let misused = caller.ask(&operation, Shape::body(&other)).await;
    record.saw_answer("other body", &misused);
    judge(caller, record, Some(&first), &misused);
    let retry = caller.settle(&operation, Shape::default()).await;
    record.saw_settled("first body again", &retry);
    caller.judge_retry(record, &first, &retry);
    let effects = caller.effects(&operation, &counting, record).await?;
    record.exactly_one(effects);
    Ok(())
}

pub(super) async fn different_body_in_flight(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    for round in 0..ROUNDS {
        race(caller, record, round == 0).await?;
        if record.failed() {
            return Ok(());
        }
    }
    if let Some(slow) = &caller.target.cases.slow {
        during(caller, record, slow).await?;
    }
    Ok(())
}

/// Two bodies at the same time: whichever comes first, the other is refused.
async fn race(caller: &Caller<'_>, record: &mut Record, tell_sent: bool) -> Result<(), Stop> {
    let operation = caller.operation();
    let other = other_body(caller, &operation, Shape::default())?;
    if tell_sent {
        record.sent(format!(
            "{}, and at the same time the same key with {other}",
            caller.told(&operation, Shape::default())
        ));
    }
    let counting = caller.counting(&operation).await?;
    let shapes = [Shape::default(), Shape::body(&other)];
    let (one, two) = join(caller.connect(), caller.connect()).await;
    let (Ok(one), Ok(two)) = (one, two) else {
        return Err(Stop::NotSeen(
            "two connections at once could not be opened".to_owned(),
        ));
    };
    let (one, two) = join(
        caller.ask_on(one, &operation, shapes[0]),
        caller.ask_on(two, &operation, shapes[1]),
    )
    .await;
    record.saw_answer("one", &one);
    record.saw_answer("other", &two);
    // Who was told to come back does so, and is refused then.
    let one = caller.settle(&operation, shapes[0]).await.answer.ok();
    let two = caller.settle(&operation, shapes[1]).await.answer.ok();
    let succeeded = |answer: &Option<Answer>| answer.as_ref().is_some_and(Answer::is_success);
    match (succeeded(&one), succeeded(&two)) {
        (true, true) => {
            let alike = one
                .zip(two)
                .is_some_and(|(a, b)| difference(&a, &b).is_none());
            record.fail(if alike {
                "two different requests were given the same success"
            } else {
                "two different requests succeeded under one key"
            });
        }
        (false, false) => record.note("neither of the two succeeded"),
        (true, false) | (false, true) => {}
    }
    let effects = caller.effects(&operation, &counting, record).await?;
    record.at_most_one(effects);
    Ok(())
}

/// The other body while the first surely runs.
async fn during(caller: &Caller<'_>, record: &mut Record, slow: &Case) -> Result<(), Stop> {
    let operation = caller.operation();
    let shape = Shape::case(Some(slow));
    let other = other_body(caller, &operation, shape)?;
    record.sent(format!(
        "{} as a slow operation, and meanwhile the same key with {other}",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation).await?;
    let later = async {
        sleep(BEGUN).await;
        caller.ask(&operation, Shape::body(&other)).await
    };
    let (first, misused) = join(caller.ask(&operation, shape), later).await;
    record.saw_answer("slow", &first);
    record.saw_answer("other body meanwhile", &misused);
    judge(caller, record, first.as_ref().ok(), &misused);
    let effects = caller.effects(&operation, &counting, record).await?;
    record.at_most_one(effects);
    Ok(())
}

fn other_body(
    caller: &Caller<'_>,
    operation: &Operation,
    shape: Shape<'_>,
) -> Result<String, Stop> {
    let given = caller.target.other_body.as_deref();
    let given = given.map(|other| caller.body(operation, Shape::body(other)));
    let other = given.or_else(|| json::other(&caller.body(operation, shape)));
    other.ok_or_else(|| {
        Stop::NotSeen("the body has no number to change: give --other-body".to_owned())
    })
}

/// Judges the answer to a key that came back with another body.
fn judge(
    caller: &Caller<'_>,
    record: &mut Record,
    first: Option<&Answer>,
    misused: &Result<Answer, String>,
) {
    let answer = match misused {
        Ok(answer) => answer,
        Err(reason) => {
            record.note(format!("the other body got no answer: {reason}"));
            return unsure(caller, record);
        }
    };
    if answer.is_success() {
        let alike = first.is_some_and(|first| first.body == answer.body);
        record.fail(if alike {
            "another request was given the first one's success"
        } else {
            "another request succeeded under the same key"
        });
    } else if answer.is_refusal() {
        remark(caller.dialect, answer.status, record);
    } else {
        record.note(format!(
            "the other body was answered with {}",
            tell(misused)
        ));
        unsure(caller, record);
    }
}

fn unsure(caller: &Caller<'_>, record: &mut Record) {
    if !caller.counts() {
        record.blind(
            "the other body was not plainly refused, and nobody counts whether it was executed: \
             give --count-url or --count-command",
        );
    }
}

fn remark(dialect: Dialect, status: u16, record: &mut Record) {
    let usual = match dialect {
        Dialect::Ietf => 422,
        Dialect::Stripe => 400,
    };
    if status == 409 {
        record.note("misuse was answered with 409, which clients retry: they never learn of it");
    } else if status != usual {
        record.note(format!(
            "misuse was answered with {status}, where the {} dialect has {usual}",
            dialect.name()
        ));
    }
}
