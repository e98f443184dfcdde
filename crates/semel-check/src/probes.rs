//! The probes, grouped by topic.

mod faults;
mod interrupted;
mod keys;
mod misuse;
mod outcomes;
mod retries;
mod tenants;

use crate::catalogue::{Group, ProbeId};
use crate::client::ProbeClient;
use crate::probe_log::{ProbeLog, Stop};
use crate::report::Finding;

/// Runs one probe.
pub(crate) async fn run(id: ProbeId, client: &ProbeClient<'_>) -> Finding {
    let mut log = ProbeLog::default();
    let ended = probe(id, client, &mut log).await;
    log.finding(id, ended)
}

async fn probe(id: ProbeId, client: &ProbeClient<'_>, log: &mut ProbeLog) -> Result<(), Stop> {
    if id.group() == Group::Disruptive && !client.target.disruptive {
        return Err(Stop::Skipped("only with --disruptive".to_owned()));
    }
    match id {
        ProbeId::Replay => retries::replay(client, log).await,
        ProbeId::SameJsonReordered => retries::same_json_reordered(client, log).await,
        ProbeId::DifferentBody => misuse::different_body(client, log).await,
        ProbeId::DifferentBodyInFlight => misuse::different_body_in_flight(client, log).await,
        ProbeId::ConcurrentDuplicates => retries::concurrent_duplicates(client, log).await,
        ProbeId::TenantIsolation => tenants::tenant_isolation(client, log).await,
        ProbeId::MissingKey => keys::missing_key(client, log).await,
        ProbeId::MalformedKey => keys::malformed_key(client, log).await,
        ProbeId::OversizedKey => keys::oversized_key(client, log).await,
        ProbeId::DeclinedIsFinal => outcomes::declined_is_final(client, log).await,
        ProbeId::DisconnectAfterEffect => interrupted::disconnect_after_effect(client, log).await,
        ProbeId::SlowOperation => interrupted::slow_operation(client, log).await,
        ProbeId::OversizedResponse => outcomes::oversized_response(client, log).await,
        ProbeId::TimeoutAfterEffect => outcomes::timeout_after_effect(client, log).await,
        ProbeId::FailedCompletion => faults::failed_completion(client, log).await,
        ProbeId::CrashAndRestart => faults::crash_and_restart(client, log).await,
    }
}
