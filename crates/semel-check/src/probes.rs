//! The probes, by family.

mod faults;
mod interrupted;
mod keys;
mod misuse;
mod outcomes;
mod retries;
mod tenants;

use crate::caller::Caller;
use crate::catalogue::{Group, Id};
use crate::record::{Record, Stop};
use crate::report::Finding;

/// Runs one probe.
pub(crate) async fn run(id: Id, caller: &Caller<'_>) -> Finding {
    let mut record = Record::default();
    let ended = probe(id, caller, &mut record).await;
    record.finding(id, ended)
}

async fn probe(id: Id, caller: &Caller<'_>, record: &mut Record) -> Result<(), Stop> {
    if id.group() == Group::Disruptive && !caller.target.disruptive {
        return Err(Stop::Skipped("only with --disruptive".to_owned()));
    }
    match id {
        Id::Replay => retries::replay(caller, record).await,
        Id::SameJsonReordered => retries::same_json_reordered(caller, record).await,
        Id::DifferentBody => misuse::different_body(caller, record).await,
        Id::DifferentBodyInFlight => misuse::different_body_in_flight(caller, record).await,
        Id::ConcurrentDuplicates => retries::concurrent_duplicates(caller, record).await,
        Id::TenantIsolation => tenants::tenant_isolation(caller, record).await,
        Id::MissingKey => keys::missing_key(caller, record).await,
        Id::MalformedKey => keys::malformed_key(caller, record).await,
        Id::OversizedKey => keys::oversized_key(caller, record).await,
        Id::DeclinedIsFinal => outcomes::declined_is_final(caller, record).await,
        Id::DisconnectAfterEffect => interrupted::disconnect_after_effect(caller, record).await,
        Id::SlowOperation => interrupted::slow_operation(caller, record).await,
        Id::OversizedResponse => outcomes::oversized_response(caller, record).await,
        Id::TimeoutAfterEffect => outcomes::timeout_after_effect(caller, record).await,
        Id::FailedCompletion => faults::failed_completion(caller, record).await,
        Id::CrashAndRestart => faults::crash_and_restart(caller, record).await,
    }
}
