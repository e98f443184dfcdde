//! The same request again: later, written differently, and at the same time.

use futures_util::future::join_all;

use crate::answers::{around, difference, is_pending, tell};
use crate::caller::{Caller, Shape};
use crate::json;
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
    let counting = caller.counting(&operation).await?;
    let first = caller.first(&operation, shape, record).await?;
    // Twice: there are stores that let the second retry in.
    for which in ["retry", "second retry"] {
        let retry = caller.settle(&operation, shape).await;
        record.saw_settled(which, &retry);
        caller.judge_retry(record, &first, &retry);
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
    let counting = caller.counting(&operation).await?;
    let first = caller.first(&operation, Shape::default(), record).await?;
    let settled = caller.settle(&operation, retry).await;
    record.saw_settled("retry", &settled);
    match &settled.answer {
        Ok(answer) if answer.is_refusal() => record.note(
            "it was refused as another request: safe, but a client that serialises a retry anew \
             is turned away",
        ),
        Ok(_) | Err(_) => caller.judge_retry(record, &first, &settled),
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
    let counting = caller.counting(&operation).await?;
    // Connected before, so that only the requests race.
    let opened = join_all((0..AT_ONCE).map(|_| caller.connect())).await;
    let connections: Vec<_> = opened.into_iter().filter_map(Result::ok).collect();
    let asked = connections
        .into_iter()
        .map(|one| caller.ask_on(one, &operation, shape));
    let answers = join_all(asked).await;

    let successes: Vec<&Answer> = answers
        .iter()
        .flatten()
        .filter(|answer| answer.is_success() && !is_pending(answer))
        .collect();
    let pending = answers
        .iter()
        .flatten()
        .filter(|answer| is_pending(answer))
        .count();
    let others = answers.len() - successes.len() - pending;
    record.saw(format!(
        "{} succeeded, {pending} told to come back, {others} others",
        successes.len()
    ));
    if let Some(other) = answers.iter().find(|answer| {
        answer
            .as_ref()
            .map_or(true, |answer| !answer.is_success() && !is_pending(answer))
    }) {
        record.note(format!("a duplicate was answered with {}", tell(other)));
    }
    let unmarked = successes
        .iter()
        .filter(|answer| !answer.is_marked())
        .count();
    if let Some((first, rest)) = successes.split_first() {
        // One that was executed may be marked otherwise than one that was replayed, and no more.
        if let Some(other) = rest.iter().find_map(|other| difference(first, other)) {
            record.fail(format!(
                "duplicates were given different successes: {other}"
            ));
        }
    }
    let retry = caller.settle(&operation, shape.retry()).await;
    record.saw_settled("retry", &retry);
    match successes.first() {
        Some(first) => caller.judge_retry(record, first, &retry),
        None if retry.success().is_some() => {}
        None => record.fail(format!(
            "none succeeded, nor did a retry: {}",
            tell(&retry.answer)
        )),
    }
    let effects = caller.effects(&operation, &counting, record).await?;
    record.exactly_one(effects);
    if effects.is_none() && !caller.telling && unmarked > 1 {
        record.blind(
            "several were answered alike, but nothing says that only one was executed: give \
             --count-url or --count-command",
        );
    }
    Ok(())
}
