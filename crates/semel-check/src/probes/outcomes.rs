//! Outcomes that are not a plain success.

use super::interrupted::{Fault, judge_after_fault};
use crate::client::{FinalResponse, ProbeClient};
use crate::judge::mark_unjudged;
use crate::operation::RequestVariant;
use crate::probe_log::{ProbeLog, Stop};
use crate::response::{describe, difference};
use crate::response_kind::ResponseKind;
use crate::target::Case;
use crate::wire::Response;

/// Any store keeps a smaller response, so a complete replay of one proves nothing.
const LARGE: usize = 64 << 10;

pub(super) async fn declined_is_final(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let declined = required_case(
        client.target.cases.declined.as_ref(),
        "declined",
        "is declined",
    )?;
    let operation = client.operation();
    let variant = RequestVariant::case(Some(declined));
    log.sent(format!(
        "{} to be declined, then a retry",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let first = client.send(&operation, variant).await;
    log.observe_response("first", &first);
    let (ResponseKind::Refusal, Ok(first)) = (client.kind(&first), &first) else {
        let seen = describe(&first);
        return Err(Stop::NotSeen(format!("the case did not decline: {seen}")));
    };
    let before = client.effects(&operation, &baseline, log).await?;
    let retry = client.retry_until_final(&operation, variant.retry()).await;
    log.observe_final("retry", &retry);
    let after = client.effects(&operation, &baseline, log).await?;
    if let (Some(before), Some(after)) = (before, after)
        && after > before
    {
        log.fail("a retry of a declined operation was executed");
    }
    judge_declined(log, declined, first, &retry);
    Ok(())
}

fn judge_declined(log: &mut ProbeLog, case: &Case, first: &Response, retry: &FinalResponse) {
    match (retry.kind, &retry.answer) {
        (ResponseKind::Success, _) => log.fail("a declined operation succeeded under the same key"),
        (ResponseKind::Refusal, Ok(answer)) if answer.status == first.status => {
            if let Some(difference) = difference(first, answer) {
                log.note(format!("the refusal changed: {difference}"));
            }
            // An executed retry without the header would succeed; with the body it is declined anyway.
            if matches!(case, Case::Body(_)) && !answer.is_marked() {
                log.inconclusive(
                    "it was declined again, and nothing shows that it was not executed again: \
                     use a header for the case, which retries omit",
                );
            }
        }
        (ResponseKind::Refusal | ResponseKind::Pending | ResponseKind::Inconclusive, _) => log
            .inconclusive(format!(
                "the retry was not declined again, but got {}",
                describe(&retry.answer)
            )),
    }
}

pub(super) async fn oversized_response(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let large = "responds with more than the server stores (usually over 1 MiB)";
    let large = required_case(client.target.cases.large.as_ref(), "large", large)?;
    let operation = client.operation();
    let variant = RequestVariant::case(Some(large));
    log.sent(format!(
        "{} for a large response, then a retry",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let first = client.send_first(&operation, variant, log).await?;
    let retry = client.retry_until_final(&operation, variant.retry()).await;
    log.observe_final("retry", &retry);
    let (whole, part) = (
        first.body.len(),
        retry.success().map(|answer| &answer.body[..]),
    );
    match (retry.kind, part) {
        (ResponseKind::Success, Some(part))
            if part.len() < whole && first.body.starts_with(part) =>
        {
            let part = part.len();
            log.fail(format!("a retry got {part} of {whole} bytes as a success"));
        }
        (ResponseKind::Success, Some(part)) if part == first.body && whole < LARGE => {
            log.inconclusive(format!(
                "the response was not large: {whole} bytes, and all of them were stored"
            ));
        }
        (ResponseKind::Success, _) => {
            client.judge_retry(log, &operation, &first, &retry).await;
            log.note(format!("all {whole} bytes were stored"));
        }
        (ResponseKind::Refusal | ResponseKind::Pending, _) => {
            log.note("the response was not stored; the retry was refused, not executed");
        }
        (ResponseKind::Inconclusive, _) => mark_unjudged(log, "the retry", &retry.answer),
    }
    let effects = client.effects(&operation, &baseline, log).await?;
    log.expect_one_effect(effects);
    Ok(())
}

pub(super) async fn timeout_after_effect(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    let timeout = "does its work and then responds with 504";
    let timeout = required_case(client.target.cases.timeout.as_ref(), "timeout", timeout)?;
    let operation = client.operation();
    let variant = RequestVariant::case(Some(timeout));
    log.sent(format!(
        "{} to time out, then retries",
        client.describe_request(&operation, variant)
    ));
    let baseline = client.effect_baseline(&operation, variant).await?;
    let first = client.send(&operation, variant).await;
    log.observe_response("first", &first);
    if first
        .as_ref()
        .is_ok_and(|answer| answer.status < 500 && answer.status != 409)
    {
        let seen = describe(&first);
        return Err(Stop::NotSeen(format!("the case did not time out: {seen}")));
    }
    let effects = client.effects_after_lag(&operation, &baseline, log).await?;
    judge_effect_before_fault(log, effects);
    let mut fault = Fault::new(&operation, variant, &baseline);
    fault.first_error = first.as_ref().ok();
    judge_after_fault(client, log, &fault).await?;
    Ok(())
}

/// Checks that the effect came before the fault: otherwise a retry has nothing to repeat.
pub(super) fn judge_effect_before_fault(log: &mut ProbeLog, effects: Option<u64>) {
    match effects {
        Some(0) => log.inconclusive("nothing had been executed when the first response came"),
        Some(_) => {}
        None => log.note(
            "without a counter it is not known whether the effect came before the first response",
        ),
    }
}

/// The case that a probe needs, or the reason to stop.
pub(super) fn required_case<'a>(
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
