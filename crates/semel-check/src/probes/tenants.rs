//! Two customers and one key.

use crate::answers::{difference, tell};
use crate::caller::Caller;
use crate::judge::unjudged;
use crate::kind::Kind;
use crate::operation::Shape;
use crate::record::{Record, Stop};

pub(super) async fn tenant_isolation(caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    if caller.target.other_headers.is_empty() {
        let reason = "needs a second customer: --other-header 'Authorization: Bearer …'";
        return Err(Stop::Skipped(reason.to_owned()));
    }
    let theirs = Shape {
        other_tenant: true,
        ..Shape::default()
    };
    // So that a refusal of the key is told from a refusal of the customer.
    let fresh = caller.ask(&caller.operation(), theirs).await;
    if caller.success(&fresh).is_none() {
        return Err(Stop::NotSeen(format!(
            "the other customer's own request was answered with {}",
            tell(&fresh)
        )));
    }
    let mine = caller.operation();
    let other = mine.another();
    record.sent(format!(
        "{}, then the same key as another customer with {}",
        caller.told(&mine, Shape::default()),
        caller.body(&other, theirs)
    ));
    let counting = caller.counting(&other, theirs).await?;
    let first = caller.first(&mine, Shape::default(), record).await?;
    let before = caller.effects_at_last(&other, &counting, record).await?;
    let settled = caller.settle(&other, theirs).await;
    record.saw_settled("other customer", &settled);
    let after = caller.effects(&other, &counting, record).await?;
    match (settled.kind, &settled.answer) {
        (Kind::Success, Ok(answer)) => {
            let alike = difference(&first, answer).is_none();
            // Asked more than once, it may be a replay of its own.
            let replayed = answer.is_marked() && (alike || settled.tries == 1);
            if replayed || (alike && caller.learned.telling) {
                record.fail("one customer was given the answer to another's request");
            } else if after.is_some() && after == before {
                record.fail("the other customer was told of success, and nothing was executed");
            } else if alike && after.is_none() {
                record.blind("both were answered alike: give --count-url or --count-command");
            }
        }
        (Kind::Pending | Kind::Refusal, _) => record.fail(
            "the other customer's request was refused because of a key that somebody else used",
        ),
        (Kind::Success | Kind::Silent, _) => {
            unjudged(record, "the other customer's request", &settled.answer);
        }
    }
    let retry = caller.settle(&mine, Shape::default()).await;
    record.saw_settled("first customer again", &retry);
    caller.judge_retry(record, &mine, &first, &retry).await;
    Ok(())
}
