//! All probes, one after the other.

use crate::answers::tell;
use crate::caller::{Caller, Operation, Shape};
use crate::catalogue::Id;
use crate::report::{Finding, Report};
use crate::target::{Chosen, Dialect, Target};
use crate::wire::Answer;
use crate::{Error, World, counter, probes};

/// Puts the probes to a target. They do real operations there, each under a new key.
///
/// # Errors
/// Where nothing answers, where not even a first request is taken, or where the counter does not
/// count: no guarantee was judged then.
///
/// # Cancellation
/// Dropping the future closes its connections. What the target has begun goes on there, and a
/// store that was broken on request stays broken.
pub async fn check(target: &Target, world: &dyn World) -> Result<Report, Error> {
    let (dialect, telling) = learn(target, world).await?;
    let caller = Caller {
        target,
        world,
        dialect,
        telling,
    };
    let mut findings = Vec::new();
    for id in Id::ALL {
        let mut finding = probes::run(id, &caller).await;
        hide(target, &mut finding);
        findings.push(finding);
    }
    let counted = target.counter.is_some();
    Ok(Report::new(
        target.address.to_string(),
        dialect,
        counted,
        findings,
    ))
}

/// Which dialect is taken, and whether two executions are told apart by their answers.
async fn learn(target: &Target, world: &dyn World) -> Result<(Dialect, bool), Error> {
    let dialects: &[Dialect] = match target.dialect {
        Chosen::Auto => &[Dialect::Ietf, Dialect::Stripe],
        Chosen::Fixed(Dialect::Ietf) => &[Dialect::Ietf],
        Chosen::Fixed(Dialect::Stripe) => &[Dialect::Stripe],
    };
    let mut seen = String::new();
    for dialect in dialects {
        let caller = Caller {
            target,
            world,
            dialect: *dialect,
            telling: false,
        };
        match begin(&caller).await? {
            Ok(first) => {
                let Ok(second) = begin(&caller).await? else {
                    continue;
                };
                return Ok((*dialect, blank(&first) != blank(&second)));
            }
            Err(refused) => seen = refused,
        }
    }
    for secret in target.secrets() {
        seen = seen.replace(secret, "[hidden]");
    }
    Err(Error::NotAccepted {
        seen: crate::text::line(&seen),
    })
}

/// A first request, and whether the counter saw it.
async fn begin(caller: &Caller<'_>) -> Result<Result<(Operation, Answer), String>, Error> {
    let operation = caller.operation();
    let unreachable = |reason| Error::Unreachable {
        address: caller.target.address.to_string(),
        reason,
    };
    caller.connect().await.map_err(unreachable)?;
    let before = count(caller, &operation).await?;
    let answer = caller.ask(&operation, Shape::default()).await;
    let first = match answer {
        Ok(answer) if answer.is_success() => answer,
        Ok(_) => return Ok(Err(tell(&answer))),
        Err(reason) => return Err(unreachable(reason)),
    };
    let after = count(caller, &operation).await?;
    if let (Some(before), Some(after)) = (before, after) {
        let counted = after.saturating_sub(before);
        if counted != 1 {
            return Err(Error::Counter(format!(
                "a single request that succeeded counted as {counted}; does it count by \
                 {{reference}} or {{key}}?"
            )));
        }
    }
    Ok(Ok((operation, first)))
}

async fn count(caller: &Caller<'_>, operation: &Operation) -> Result<Option<u64>, Error> {
    let Some(counter) = &caller.target.counter else {
        return Ok(None);
    };
    let (reference, key) = (&operation.reference, &operation.key);
    let answer = counter::count(counter, caller.target, caller.world, reference, key).await;
    answer.map(Some).map_err(Error::Counter)
}

/// What an answer says without what it repeats of the request.
fn blank((operation, answer): &(Operation, Answer)) -> String {
    let location = answer.text_of("location").unwrap_or_default();
    let etag = answer.text_of("etag").unwrap_or_default();
    let body = String::from_utf8_lossy(&answer.body);
    format!("{location}\n{etag}\n{body}")
        .replace(&operation.reference, "")
        .replace(&operation.key, "")
}

/// A server may repeat credentials in its answers; a report that is kept must not.
fn hide(target: &Target, finding: &mut Finding) {
    for secret in target.secrets() {
        for text in [&mut finding.sent, &mut finding.seen, &mut finding.brief] {
            *text = text.replace(secret, "[hidden]");
        }
        for note in &mut finding.notes {
            *note = note.replace(secret, "[hidden]");
        }
    }
}
