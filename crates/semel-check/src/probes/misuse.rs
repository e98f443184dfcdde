//! A key that comes back with another body.

use futures_util::future::join;
use tokio::time::{Duration, sleep};

use crate::answers::difference;
use crate::caller::{Caller, Settled};
use crate::json;
use crate::judge::unjudged;
use crate::kind::{Kind, is_doubtful, is_own};
use crate::operation::{Operation, Shape};
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
    let counting = caller.counting(&operation, Shape::default()).await?;
    let first = caller.first(&operation, Shape::default(), record).await?;
    let misused = caller.ask(&operation, Shape::body(&other)).await;
    record.saw_answer("other body", &misused);
    judge(caller, record, &first, &misused);
    let retry = caller.settle(&operation, Shape::default()).await;
    record.saw_settled("first body again", &retry);
    caller.judge_retry(record, &operation, &first, &retry).await;
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
    let counting = caller.counting(&operation, Shape::default()).await?;
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
    let other_won = caller.success(&one).is_none() && caller.success(&two).is_some();
    let (raced, shapes) = if other_won {
        ([two, one], [shapes[1], shapes[0]])
    } else {
        ([one, two], shapes)
    };
    let settled = caller.settle(&operation, shapes[0]).await;
    // Who was told to come back does so. Where the first succeeded, this is about the key.
    let later = match settled.success() {
        Some(_) => caller.ask(&operation, shapes[1]).await,
        None => caller.settle(&operation, shapes[1]).await.answer,
    };
    judge_race(caller, record, &operation, &raced, &settled, &later).await;
    let effects = caller.effects(&operation, &counting, record).await?;
    record.at_most_one(effects);
    if settled.success().is_some() {
        record.exactly_one(effects);
    }
    if effects.is_none() && raced.iter().any(is_doubtful) {
        record.blind(
            "one of the two got no answer that says whether it was executed: give --count-url or \
             --count-command",
        );
    } else if !raced.iter().all(is_own) {
        record.blind("one of the two did not get through to the API, so that nothing raced");
    }
    Ok(())
}

/// What both were told while they raced, the winner first, and what each was told afterwards.
async fn judge_race(
    caller: &Caller<'_>,
    record: &mut Record,
    operation: &Operation,
    raced: &[Result<Answer, String>; 2],
    settled: &Settled,
    later: &Result<Answer, String>,
) {
    match (caller.success(&raced[0]), caller.success(&raced[1])) {
        (Some(one), Some(two)) => {
            return record.fail(match difference(one, two) {
                None => "two different requests were given the same success",
                Some(_) => "two different requests succeeded under one key",
            });
        }
        // Nobody may take back what was told, for the other's sake.
        (Some(first), None) => caller.judge_retry(record, operation, first, settled).await,
        (None, Some(_) | None) => {}
    }
    match (settled.success(), caller.success(later)) {
        (Some(first), _) => judge(caller, record, first, later),
        (None, Some(first)) => judge(caller, record, first, &settled.answer),
        (None, None) => record.blind("neither of the two succeeded"),
    }
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
    let counting = caller.counting(&operation, shape).await?;
    let later = async {
        sleep(BEGUN).await;
        caller.ask(&operation, Shape::body(&other)).await
    };
    let (first, misused) = join(caller.ask(&operation, shape), later).await;
    record.saw_answer("slow", &first);
    record.saw_answer("other body meanwhile", &misused);
    let Some(first) = caller.success(&first) else {
        record.blind("the slow operation did not succeed: whether it was under way was not seen");
        return Ok(());
    };
    // Until it is over nobody need look at the body.
    let misused = match caller.kind(&misused) {
        Kind::Pending => {
            let misused = caller.ask(&operation, Shape::body(&other)).await;
            record.saw_answer("other body afterwards", &misused);
            misused
        }
        Kind::Success | Kind::Refusal | Kind::Silent => misused,
    };
    judge(caller, record, first, &misused);
    let effects = caller.effects(&operation, &counting, record).await?;
    record.exactly_one(effects);
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
    first: &Answer,
    misused: &Result<Answer, String>,
) {
    match (caller.kind(misused), misused) {
        (Kind::Success, Ok(answer)) => record.fail(match difference(first, answer) {
            None => "another request was given the first one's success",
            Some(_) => "another request succeeded under the same key",
        }),
        (Kind::Refusal | Kind::Pending, Ok(answer)) if answer.is_refusal() => {
            remark(caller.learned.dialect, answer.status, record);
        }
        (Kind::Success | Kind::Refusal | Kind::Pending | Kind::Silent, _) => {
            unjudged(record, "the other body", misused);
        }
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
