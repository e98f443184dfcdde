//! All probes, one after the other.

use crate::caller::Caller;
use crate::catalogue::Id;
use crate::learn::learn;
use crate::report::{Finding, Report};
use crate::secrets::HIDDEN;
use crate::target::Target;
use crate::{Error, World, probes};

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
    let learned = learn(target, world).await?;
    let caller = Caller {
        target,
        world,
        learned,
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
        learned.dialect,
        counted,
        findings,
    ))
}

/// Secrets may be in commands and bodies as well; a report that is kept has none. Answers come
/// here without them, since they are shown in part.
fn hide(target: &Target, finding: &mut Finding) {
    for secret in target.secrets() {
        for text in [&mut finding.sent, &mut finding.seen, &mut finding.brief] {
            *text = text.replace(secret, HIDDEN);
        }
        for note in &mut finding.notes {
            *note = note.replace(secret, HIDDEN);
        }
    }
}
