//! Coverage: a run that had too little of a fault proves nothing about that fault.

use std::collections::BTreeMap;

/// Every fault, and how often it must occur in a thousand seeds. Each occurs at least eighty times
/// on average.
const FAULTS: [&str; 31] = [
    "app_500_after_effect",
    "app_504_after_effect",
    "app_504_without_effect",
    "app_answer_broke_off",
    "app_answer_too_large",
    "app_declined",
    "app_forget",
    "app_gave_up_on_provider",
    "app_late",
    "app_not_executed",
    "app_panicked_after_effect",
    "app_panicked_before_effect",
    "app_reset_after_effect",
    "app_reset_before_effect",
    "app_unknown_after_effect",
    "app_unreachable",
    "client_disconnected",
    "client_misused_key",
    "gateway_drained",
    "gateway_killed",
    "gateway_stopped",
    "look_hung",
    "look_panicked",
    "look_unclear",
    "store_answer_lost",
    "store_failed_before",
    "store_landed_late",
    "store_outage",
    "store_slow",
    "worker_killed",
    "worker_stopped",
];
const FAULTS_IN_THOUSAND: u64 = 20;

/// Every result of a request, and how often it must occur in a thousand seeds. The rarest occurs
/// about forty times on average.
const OUTCOMES: [&str; 27] = [
    "connection_broke",
    "connection_refused",
    "decided_by_a_person",
    "executed_201",
    "executed_402",
    "executed_500",
    "gave_up",
    "idempotency_key_expired_400",
    "idempotency_key_expired_410",
    "idempotency_key_in_progress_409",
    "idempotency_key_in_use_409",
    "idempotency_key_reused_400",
    "idempotency_key_reused_422",
    "idempotency_outcome_pending_503",
    "idempotency_outcome_unknown_409",
    "idempotency_outcome_unknown_504",
    "idempotency_response_not_stored_400",
    "idempotency_response_not_stored_410",
    "idempotency_store_unavailable_503",
    "passed_on_202",
    "passed_on_409",
    "passed_on_429",
    "passed_on_504",
    "replayed_201",
    "replayed_402",
    "replayed_500",
    "upstream_unreachable_502",
];
const OUTCOMES_IN_THOUSAND: u64 = 5;

/// The faults and results that occurred too rarely in this number of seeds.
pub(crate) fn missing_coverage(
    seeds: u64,
    faults: &BTreeMap<String, u64>,
    outcomes: &BTreeMap<String, u64>,
) -> Vec<String> {
    let faults = below_minimum(&FAULTS, faults, seeds * FAULTS_IN_THOUSAND / 1000);
    let outcomes = below_minimum(&OUTCOMES, outcomes, seeds * OUTCOMES_IN_THOUSAND / 1000);
    faults.chain(outcomes).collect()
}

fn below_minimum(
    names: &[&str],
    counts: &BTreeMap<String, u64>,
    least: u64,
) -> impl Iterator<Item = String> {
    names.iter().filter_map(move |name| {
        let count = counts.get(*name).copied().unwrap_or(0);
        (count < least).then(|| format!("{name}: {count} of {least}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_faults_are_reported() {
        let all = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), 20)).collect();
        let (faults, mut outcomes): (_, BTreeMap<_, _>) = (all(&FAULTS), all(&OUTCOMES));
        assert!(missing_coverage(1000, &faults, &outcomes).is_empty());
        outcomes.remove("gave_up");
        assert_eq!(
            missing_coverage(1000, &faults, &outcomes),
            ["gave_up: 0 of 5"]
        );
        assert_eq!(missing_coverage(1050, &faults, &outcomes).len(), 32);
        // A single seed need not have everything.
        assert!(missing_coverage(1, &BTreeMap::new(), &BTreeMap::new()).is_empty());
    }
}
