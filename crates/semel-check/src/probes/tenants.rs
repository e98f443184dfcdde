//! Two customers and one key.

use crate::answers::{difference, tell};
use crate::caller::{Caller, Shape};
use crate::record::{Record, Stop};
use crate::wire::Answer;

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
    if !fresh.as_ref().is_ok_and(Answer::is_success) {
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
    let counting = caller.counting(&other).await?;
    let first = caller.first(&mine, Shape::default(), record).await?;
    let before = caller.effects_since(&other, &counting).await?;
    let answer = caller.ask(&other, theirs).await;
    record.saw_answer("other customer", &answer);
    let after = caller.effects(&other, &counting, record).await?;
    match &answer {
        Ok(answer) if answer.is_success() => {
            let alike = difference(&first, answer).is_none();
            if answer.is_marked() || (alike && caller.telling) {
                record.fail("one customer was given the answer to another's request");
            } else if after.is_some() && after == before {
                record.fail("the other customer was told of success, and nothing was executed");
            } else if alike && after.is_none() {
                record.blind("both were answered alike: give --count-url or --count-command");
            }
        }
        Ok(_) | Err(_) => record.fail(
            "the other customer's request was refused because of a key that somebody else used",
        ),
    }
    let retry = caller.settle(&mine, Shape::default()).await;
    record.saw_settled("first customer again", &retry);
    caller.judge_retry(record, &first, &retry);
    Ok(())
}
