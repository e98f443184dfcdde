//! The same request again: later, written differently, and at the same time.

use futures_util::future::join_all;

use crate::answers::{around, tell};
use crate::caller::{Caller, Settled};
use crate::json;
use crate::judge::unjudged;
use crate::kind::{Kind, is_doubtful, is_own};
use crate::operation::Shape;
use crate::record::{Record, Stop};
use crate::wire::Answer;

/// Enough that some meet between the look and the store; few enough for any server.
const AT_ONCE: usize = 16;
/// A race that was won by luck is lost in one of these.
const ROUNDS: usize = 3;

pub(super) async fn replay(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    let operation = caller.operation();
    let shape = Shape::default();
    record.sent(format!("{}, three times", caller.told(&operation, shape)));
    let counting = caller.counting(&operation, shape).await?;
    let first = caller.first(&operation, shape, record).await?;
    // Twice: there are stores that let the second retry in.
    for which in ["retry", "second retry"] {
        let retry = caller.settle(&operation, shape).await;
        record.saw_settled(which, &retry);
        caller.judge_retry(record, &operation, &first, &retry).await;
        if let Some(difference) = retry.success().and_then(|retry| around(&first, retry)) {
            record.fail(format!("a replay was not the first answer: {difference}"));
        }
        if let (Some(cookie), Some(answer)) = (first.header("set-cookie"), retry.success())
            && answer.header("set-cookie") == Some(cookie)
        {
            record.note("the replay sets the first caller's cookie again");
        }
    }
    let effects = caller.effects(&operation, &counting, record).await?;
    record.exactly_one(effects);
    Ok(())
}

pub(super) async fn same_json_reordered(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    let operation = caller.operation();
    let Some(reordered) = json::reordered(&caller.body(&operation, Shape::default())) else {
        let reason = "the body is no JSON object of two members or more";
        return Err(Stop::Skipped(reason.to_owned()));
    };
    let retry = Shape::body(&reordered);
    record.sent(format!(
        "{}, then the same as {reordered}",
        caller.told(&operation, Shape::default())
    ));
    let counting = caller.counting(&operation, Shape::default()).await?;
    let first = caller.first(&operation, Shape::default(), record).await?;
    let settled = caller.settle(&operation, retry).await;
    record.saw_settled("retry", &settled);
    match settled.kind {
        Kind::Refusal | Kind::Pending => record.note(
            "it was refused as another request: safe, but a client that serialises a retry anew \
             is turned away",
        ),
        Kind::Success | Kind::Silent => {
            caller
                .judge_retry(record, &operation, &first, &settled)
                .await;
        }
    }
    let effects = caller.effects(&operation, &counting, record).await?;
    record.exactly_one(effects);
    Ok(())
}

pub(super) async fn concurrent_duplicates(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    for round in 0..ROUNDS {
        at_once(caller, record, Shape::default(), round == 0).await?;
        if record.failed() {
            return Ok(());
        }
    }
    if caller.target.cases.slow.is_some() {
        at_once(
            caller,
            record,
            Shape::case(caller.target.cases.slow.as_ref()),
            true,
        )
        .await?;
    }
    Ok(())
}

async fn at_once(
    caller: &Caller<'_>,
    record: &mut Record,
    shape: Shape<'_>,
    tell_sent: bool,
) -> Result<(), Stop> {
    let operation = caller.operation();
    if tell_sent {
        record.sent(format!(
            "{}, {AT_ONCE} times at once",
            caller.told(&operation, shape)
        ));
    }
    let counting = caller.counting(&operation, shape).await?;
    // Connected before, so that only the requests race.
    let opened = join_all((0..AT_ONCE).map(|_| caller.connect())).await;
    let asked = opened
        .into_iter()
        .flatten()
        .map(|one| caller.ask_on(one, &operation, shape));
    let answers = join_all(asked).await;
    let successes: Vec<&Answer> = answers.iter().filter_map(|a| caller.success(a)).collect();
    tally(caller, record, &answers);
    if let Some((first, rest)) = successes.split_first() {
        let what = "duplicates were given different successes";
        // One that was executed may be marked otherwise than one that was replayed, and no more.
        rest.iter()
            .any(|other| caller.differs(record, &operation, first, other, what));
    }
    let retry = caller.settle(&operation, shape.retry()).await;
    record.saw_settled("retry", &retry);
    match successes.first() {
        Some(first) => {
            caller.judge_retry(record, &operation, first, &retry).await;
        }
        None => judge_none(record, &answers, &retry),
    }
    let effects = caller.effects(&operation, &counting, record).await?;
    record.at_most_one(effects);
    if !successes.is_empty() || retry.success().is_some() {
        record.exactly_one(effects);
    }
    if effects.is_none() {
        uncounted(caller, record, &answers, &retry);
    }
    Ok(())
}

/// Writes down what became of them, and whether there was a race at all.
fn tally(caller: &Caller<'_>, record: &mut Record, answers: &[Result<Answer, String>]) {
    let of = |kind| move |answer: &&Result<Answer, String>| caller.kind(answer) == kind;
    let successes = answers.iter().filter(of(Kind::Success)).count();
    let pending = answers.iter().filter(of(Kind::Pending)).count();
    let others = answers.len() - successes - pending;
    record.saw(format!(
        "{successes} succeeded, {pending} told to come back, {others} others"
    ));
    let other = |answer: &&Result<Answer, String>| {
        matches!(caller.kind(answer), Kind::Refusal | Kind::Silent)
    };
    if let Some(other) = answers.iter().find(other) {
        record.note(format!("a duplicate was answered with {}", tell(other)));
    }
    if answers.len() < AT_ONCE {
        let opened = answers.len();
        record.note(format!(
            "{opened} of {AT_ONCE} connections could be opened at once"
        ));
    }
    if answers.iter().filter(|answer| is_own(answer)).count() < 2 {
        record.blind(
            "fewer than two of them got through to the API, so that nothing raced: raise the \
             limits of what stands before it",
        );
    }
}

/// None of them succeeded. Where one may have been executed, a refusal is as good as an answer.
fn judge_none(record: &mut Record, answers: &[Result<Answer, String>], retry: &Settled) {
    match retry.kind {
        Kind::Success => {}
        Kind::Pending | Kind::Refusal if !answers.iter().any(is_doubtful) => record.fail(format!(
            "none succeeded, nor did a retry: {}",
            tell(&retry.answer)
        )),
        Kind::Pending | Kind::Refusal => {
            record.blind("none succeeded, nor did a retry: there was no answer to compare");
        }
        Kind::Silent => unjudged(record, "none succeeded, and the retry", &retry.answer),
    }
}

/// What answers alone do not tell.
fn uncounted(
    caller: &Caller<'_>,
    record: &mut Record,
    answers: &[Result<Answer, String>],
    retry: &Settled,
) {
    let unclear = if answers.iter().any(is_doubtful) {
        "a duplicate got no answer that says whether it was executed"
    } else {
        let successes = answers.iter().filter_map(|answer| caller.success(answer));
        let unmarked = successes.filter(|answer| !answer.is_marked()).count();
        match retry.success() {
            _ if unmarked > 1 && !caller.learned.telling => {
                "several were answered alike, but nothing says that only one was executed"
            }
            Some(retry) if unmarked == 0 && !retry.is_marked() => {
                "none succeeded but a retry, and nothing says whether one was executed before"
            }
            Some(_) | None => return,
        }
    };
    record.blind(format!("{unclear}: give --count-url or --count-command"));
}
