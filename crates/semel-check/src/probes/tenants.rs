//! Two customers use one key.

use crate::client::ProbeClient;
use crate::judge::mark_unjudged;
use crate::operation::RequestVariant;
use crate::probe_log::{ProbeLog, Stop};
use crate::response::{describe, difference};
use crate::response_kind::ResponseKind;

pub(super) async fn tenant_isolation(
    client: &ProbeClient<'_>,
    log: &mut ProbeLog,
) -> Result<(), Stop> {
    if client.target.other_headers.is_empty() {
        let reason = "needs a second customer: --other-header 'Authorization: Bearer …'";
        return Err(Stop::Skipped(reason.to_owned()));
    }
    let theirs = RequestVariant {
        other_tenant: true,
        ..RequestVariant::default()
    };
    // Distinguishes a refusal of the key from a refusal of the customer.
    let fresh = client.send(&client.operation(), theirs).await;
    if client.success(&fresh).is_none() {
        return Err(Stop::NotSeen(format!(
            "the other customer's own request got {}",
            describe(&fresh)
        )));
    }
    let mine = client.operation();
    let other = mine.another();
    log.sent(format!(
        "{}, then the same key as another customer with {}",
        client.describe_request(&mine, RequestVariant::default()),
        client.body(&other, theirs)
    ));
    let baseline = client.effect_baseline(&other, theirs).await?;
    let first = client
        .send_first(&mine, RequestVariant::default(), log)
        .await?;
    let before = client.effects_after_lag(&other, &baseline, log).await?;
    let settled = client.retry_until_final(&other, theirs).await;
    log.observe_final("other customer", &settled);
    let after = client.effects(&other, &baseline, log).await?;
    match (settled.kind, &settled.answer) {
        (ResponseKind::Success, Ok(answer)) => {
            let alike = difference(&first, answer).is_none();
            // After more than one try, it may be a replay of its own.
            let replayed = answer.is_marked() && (alike || settled.tries == 1);
            if replayed || (alike && client.profile.responses_are_unique) {
                log.fail("one customer got the response to another's request");
            } else if after.is_some() && after == before {
                log.fail("the other customer got a success, and nothing was executed");
            } else if alike && after.is_none() {
                log.inconclusive("both got the same response: add --count-url or --count-command");
            }
        }
        (ResponseKind::Pending | ResponseKind::Refusal, _) => log.fail(
            "the other customer's request was refused because the first customer used the same key",
        ),
        (ResponseKind::Success | ResponseKind::Inconclusive, _) => {
            mark_unjudged(log, "the other customer's request", &settled.answer);
        }
    }
    let retry = client
        .retry_until_final(&mine, RequestVariant::default())
        .await;
    log.observe_final("first customer again", &retry);
    client.judge_retry(log, &mine, &first, &retry).await;
    Ok(())
}
