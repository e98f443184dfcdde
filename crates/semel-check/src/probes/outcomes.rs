//! Outcomes that are not a plain success.

use crate::answers::{difference, tell};
use crate::caller::{Caller, Shape};
use crate::record::{Record, Stop};
use crate::target::Case;

pub(super) async fn declined_is_final(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    let declined = needed(
        caller.target.cases.declined.as_ref(),
        "declined",
        "is declined",
    )?;
    let operation = caller.operation();
    let shape = Shape::case(Some(declined));
    record.sent(format!(
        "{} to be declined, then a retry",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation).await?;
    let first = caller.ask(&operation, shape).await;
    record.saw_answer("first", &first);
    let first = match first {
        Ok(answer) if answer.is_refusal() => answer,
        Ok(_) | Err(_) => {
            return Err(Stop::NotSeen(format!(
                "the case did not decline: {}",
                tell(&first)
            )));
        }
    };
    let before = caller.effects(&operation, &counting, record).await?;
    let retry = caller.settle(&operation, shape.retry()).await;
    record.saw_settled("retry", &retry);
    let after = caller.effects(&operation, &counting, record).await?;
    if let (Some(before), Some(after)) = (before, after)
        && after > before
    {
        record.fail("a retry of what was declined was executed");
    }
    match &retry.answer {
        Ok(answer) if answer.is_success() => {
            record.fail("what was declined succeeded under the same key");
        }
        Ok(answer) => {
            if let Some(difference) = difference(&first, answer) {
                record.note(format!("the refusal changed: {difference}"));
            }
        }
        Err(reason) => record.note(format!("the retry got no answer: {reason}")),
    }
    Ok(())
}

pub(super) async fn oversized_response(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    let large = "answers with more than is stored (over a mebibyte mostly)";
    let large = needed(caller.target.cases.large.as_ref(), "large", large)?;
    let operation = caller.operation();
    let shape = Shape::case(Some(large));
    record.sent(format!(
        "{} for a large answer, then a retry",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation).await?;
    let first = caller.first(&operation, shape, record).await?;
    let retry = caller.settle(&operation, shape.retry()).await;
    record.saw_settled("retry", &retry);
    match &retry.answer {
        Ok(answer) if answer.is_success() => {
            let whole = first.body.len();
            if answer.body.len() < whole && first.body.starts_with(&answer.body) {
                let part = answer.body.len();
                record.fail(format!(
                    "a retry was given {part} of {whole} bytes as a success"
                ));
            } else {
                caller.judge_retry(record, &first, &retry);
            }
        }
        Ok(_) => record.note("the answer was not stored; the retry was refused, not executed"),
        Err(reason) => record.note(format!("the retry got no answer: {reason}")),
    }
    let effects = caller.effects(&operation, &counting, record).await?;
    record.exactly_one(effects);
    Ok(())
}

pub(super) async fn timeout_after_effect(
    caller: &Caller<'_>,
    record: &mut Record,
) -> Result<(), Stop> {
    let timeout = "does its work and then answers 504";
    let timeout = needed(caller.target.cases.timeout.as_ref(), "timeout", timeout)?;
    let operation = caller.operation();
    let shape = Shape::case(Some(timeout));
    record.sent(format!(
        "{} to time out, then retries",
        caller.told(&operation, shape)
    ));
    let counting = caller.counting(&operation).await?;
    let first = caller.ask(&operation, shape).await;
    record.saw_answer("first", &first);
    if first
        .as_ref()
        .is_ok_and(|answer| answer.status < 500 && answer.status != 409)
    {
        let seen = tell(&first);
        return Err(Stop::NotSeen(format!("the case did not time out: {seen}")));
    }
    super::interrupted::judge_after_fault(caller, record, &operation, shape, &counting, None).await
}

/// A case that must have been given for a probe to make sense.
pub(super) fn needed<'a>(
    case: Option<&'a Case>,
    name: &str,
    behaviour: &str,
) -> Result<&'a Case, Stop> {
    case.ok_or_else(|| {
        Stop::NotSeen(format!(
            "needs a request that {behaviour}: --case {name}='HEADER: VALUE' or --case \
             {name}=body:JSON"
        ))
    })
}
