//! Runs all probes, one after the other.

use crate::catalogue::ProbeId;
use crate::client::ProbeClient;
use crate::profile::profile_target;
use crate::report::{Finding, Report};
use crate::secrets::HIDDEN;
use crate::target::Target;
use crate::{Environment, Error, probes};

/// Runs the probes against a target. They execute real operations, each under a new key.
///
/// # Errors
/// If the target does not respond, refuses a first request, or the counter does not count. No
/// guarantee was judged then.
///
/// # Cancellation
/// Dropping the future closes its connections. The target finishes operations that it started, and
/// a store that a command broke stays broken.
pub async fn check(target: &Target, environment: &dyn Environment) -> Result<Report, Error> {
    let profile = profile_target(target, environment).await?;
    let client = ProbeClient {
        target,
        environment,
        profile,
    };
    let mut findings = Vec::new();
    for id in ProbeId::ALL {
        let mut finding = probes::run(id, &client).await;
        hide(target, &mut finding);
        findings.push(finding);
    }
    let counted = target.counter.is_some();
    Ok(Report::new(
        target.address.to_string(),
        profile.dialect,
        counted,
        findings,
    ))
}

/// Hides secrets, which may also be in commands and bodies. Response excerpts were cleaned before
/// they were cut.
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
