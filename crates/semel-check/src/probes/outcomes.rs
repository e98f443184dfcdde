//! Outcomes that are not a plain success.

use super::interrupted::{Fault, judge_after_fault};
use crate::answers::{difference, tell};
use crate::caller::{Caller, Settled};
use crate::judge::unjudged;
use crate::kind::Kind;
use crate::operation::Shape;
use crate::record::{Record, Stop};
use crate::target::Case;
use crate::wire::Answer;

/// An answer that came back whole and is smaller would have been stored by anybody.
const LARGE: usize = 64 << 10;

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
    let counting = caller.counting(&operation, shape).await?;
    let first = caller.ask(&operation, shape).await;
    record.saw_answer("first", &first);
    let (Kind::Refusal, Ok(first)) = (caller.kind(&first), &first) else {
        let seen = tell(&first);
        return Err(Stop::NotSeen(format!("the case did not decline: {seen}")));
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
    judge_declined(record, declined, first, &retry);
    Ok(())
}

fn judge_declined(record: &mut Record, case: &Case, first: &Answer, retry: &Settled) {
    match (retry.kind, &retry.answer) {
        (Kind::Success, _) => record.fail("what was declined succeeded under the same key"),
        (Kind::Refusal, Ok(answer)) if answer.status == first.status => {
            if let Some(difference) = difference(first, answer) {
                record.note(format!("the refusal changed: {difference}"));
            }
            // Without its header a retry that is executed succeeds; with its body it would be
            // declined as before.
            if matches!(case, Case::Body(_)) && !answer.is_marked() {
                record.blind(
                    "it was declined again, and nothing says that it was not tried again: give \
                     the case as a header, which retries leave out",
                );
            }
        }
        (Kind::Refusal | Kind::Pending | Kind::Silent, _) => record.blind(format!(
            "the retry was not declined again, but answered with {}",
            tell(&retry.answer)
        )),
    }
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
    let counting = caller.counting(&operation, shape).await?;
    let first = caller.first(&operation, shape, record).await?;
    let retry = caller.settle(&operation, shape.retry()).await;
    record.saw_settled("retry", &retry);
    let (whole, part) = (
        first.body.len(),
        retry.success().map(|answer| &answer.body[..]),
    );
    match (retry.kind, part) {
        (Kind::Success, Some(part)) if part.len() < whole && first.body.starts_with(part) => {
            let part = part.len();
            record.fail(format!(
                "a retry was given {part} of {whole} bytes as a success"
            ));
        }
        (Kind::Success, Some(part)) if part == first.body && whole < LARGE => {
            record.blind(format!(
                "the answer was not large: {whole} bytes, and all of them were stored"
            ));
        }
        (Kind::Success, _) => {
            caller.judge_retry(record, &operation, &first, &retry).await;
            record.note(format!("all {whole} bytes were stored"));
        }
        (Kind::Refusal | Kind::Pending, _) => {
            record.note("the answer was not stored; the retry was refused, not executed");
        }
        (Kind::Silent, _) => unjudged(record, "the retry", &retry.answer),
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
    let counting = caller.counting(&operation, shape).await?;
    let first = caller.ask(&operation, shape).await;
    record.saw_answer("first", &first);
    if first
        .as_ref()
        .is_ok_and(|answer| answer.status < 500 && answer.status != 409)
    {
        let seen = tell(&first);
        return Err(Stop::NotSeen(format!("the case did not time out: {seen}")));
    }
    let effects = caller
        .effects_at_last(&operation, &counting, record)
        .await?;
    happened(record, effects);
    let mut fault = Fault::new(&operation, shape, &counting);
    fault.ended_with = first.as_ref().ok();
    judge_after_fault(caller, record, &fault).await?;
    Ok(())
}

/// Whether the effect came before the fault: else there was nothing that a retry could repeat.
pub(super) fn happened(record: &mut Record, effects: Option<u64>) {
    match effects {
        Some(0) => record.blind("nothing had happened when the first was answered"),
        Some(_) => {}
        None => record.note("nobody counts whether the effect came before the first answer"),
    }
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
