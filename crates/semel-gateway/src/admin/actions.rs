//! Actions of operators on records. The API and the console both call these functions, so both follow
//! the same rules: the state machine guards every action, and the record's history lists it.

use std::collections::BTreeMap;

use semel_core::key::KeyHasher;
use semel_core::statistics::Activity;
use semel_core::store::{self, Page, Query, Summary};
use semel_core::transition::Fenced;
use semel_core::{
    Actor, Code, Identity, KeyScope, OperationId, Record, Resolution, Resolve, State, Status,
    Store, Verdict,
};
use semel_http::Layer;
use semel_worker::{ReconcileOutcome, Reconcilers};

use super::api::FullStore;
use super::problem::Problem;

/// The result of asking the provider about an unknown record.
pub(super) enum ReconcileResult {
    /// The operation took effect; the record is completed.
    Completed,
    /// It did not take effect; the next request executes.
    Released,
    /// The provider could not settle it.
    StillUnknown(Code),
}

pub(super) async fn find_record<S: Store>(store: &S, id: &str) -> Result<Record, Problem> {
    let id: OperationId = id.parse().map_err(|_| Problem::record_not_found())?;
    store.find(id).await?.ok_or_else(Problem::record_not_found)
}

/// One page of records, newest first. A key filter first uses the store's index from keys to callers,
/// which is fast, and then walks the records as any other filter does.
///
/// The records found by the index are all on the first page, which may therefore exceed the limit.
pub(super) async fn search_records<S: FullStore>(
    layer: &Layer<S>,
    key_hasher: Option<&KeyHasher>,
    mut query: Query,
) -> store::Result<Page> {
    let store = layer.store();
    query.operation = query
        .operation
        .map(|operation| layer.stored_operation(&operation).into());
    if let (Some(hasher), Some(key)) = (key_hasher, &query.key) {
        query.key = Some(hasher.hash_searched(key));
    }
    let mut indexed = BTreeMap::new();
    let first = query.before.is_none();
    if let Some(key) = &query.key {
        for found in store.find_key(key).await? {
            indexed.insert(found.fence.id, found);
        }
        if let (Some(tenant), Some(operation)) = (&query.tenant, &query.operation) {
            for scope in [KeyScope::Operation, KeyScope::Tenant] {
                let Ok(identity) = Identity::new(&**tenant, &**operation, key.clone()) else {
                    continue;
                };
                if let Some(found) = store.find_identity(&identity.scoped(scope)).await? {
                    indexed.insert(found.id, Summary::from(&found));
                }
            }
        }
        let any_page = Query {
            before: None,
            ..query.clone()
        };
        indexed.retain(|_, found| any_page.admits(found));
    }
    let mut page = store.list(query).await?;
    page.operations
        .retain(|found| !indexed.contains_key(&found.fence.id));
    if first {
        page.operations.extend(indexed.into_values());
        page.operations
            .sort_by_key(|found| std::cmp::Reverse(found.fence.id));
    }
    Ok(page)
}

/// Activity by the names that users see. Processes from before a rename and from after it count one
/// operation under both names.
pub(super) fn shown_activity<S: FullStore>(
    layer: &Layer<S>,
    mut activity: Vec<Activity>,
) -> Vec<Activity> {
    for line in &mut activity {
        line.operation = layer.shown_operation(&line.operation).into();
    }
    activity.sort_by(|a, b| (a.at, &a.operation).cmp(&(b.at, &b.operation)));
    activity.dedup_by(|line, sum| {
        let is_same = (line.at, &line.operation) == (sum.at, &sum.operation);
        if is_same {
            sum.decisions.add(&line.decisions);
        }
        is_same
    });
    activity
}

/// Applies an operator's verdict. `attempt` is the attempt the operator looked at; without it, the
/// current one.
pub(super) async fn resolve_record<S: FullStore>(
    layer: &Layer<S>,
    id: &str,
    attempt: Option<u32>,
    mut verdict: Verdict,
    by: Actor,
) -> Result<(OperationId, Status), Problem> {
    let store = layer.store();
    let record = find_record(store, id).await?;
    if let Verdict::Completed(completion) = &mut verdict {
        // A person writes what the application would answer now.
        completion.response.schema_version = layer.schema_version(record.identity.operation());
    }
    let mut fence = record.fence();
    if let Some(attempt) = attempt {
        fence.attempt = attempt;
    }
    let new_status = match verdict {
        Verdict::Completed(_) => Status::Completed,
        Verdict::NotExecuted(_) => Status::FailedRetryable,
        Verdict::StillUnknown(..) => Status::Unknown,
    };
    let resolve = Resolve {
        fence,
        verdict,
        by,
        evidence: None,
    };
    match store.resolve(resolve).await? {
        Resolution::Applied => {
            tracing::info!(id = %record.id, status = %new_status, "an operator resolved a record");
            Ok((record.id, new_status))
        }
        Resolution::Fenced(fenced) => Err(conflict(fenced, &record)),
    }
}

/// Asks the provider about an unknown record now.
pub(super) async fn reconcile_record<S: FullStore>(
    store: &S,
    reconcilers: &Reconcilers<S>,
    id: &str,
    by: Actor,
) -> Result<(OperationId, ReconcileResult), Problem> {
    let record = find_record(store, id).await?;
    let status = record.state.status();
    if status != Status::Unknown {
        let detail =
            format!("only a record with status unknown can be reconciled; this one is {status}");
        return Err(Problem::conflict(status, detail));
    }
    let result = match reconcilers.reconcile(&record, by).await? {
        ReconcileOutcome::Completed => ReconcileResult::Completed,
        ReconcileOutcome::Released => ReconcileResult::Released,
        ReconcileOutcome::StillUnknown(code) => ReconcileResult::StillUnknown(code),
        ReconcileOutcome::Overtaken(fenced) => return Err(conflict(fenced, &record)),
        ReconcileOutcome::NoStrategy => {
            let detail = "this operation has no [route.reconcile], so the provider cannot be \
                          asked; check with the provider yourself and resolve the record";
            return Err(Problem::conflict(status, detail));
        }
    };
    Ok((record.id, result))
}

/// Returns the record with its response after adding the reveal to the history. If the history
/// cannot be written, nothing is shown.
pub(super) async fn reveal_response<S: FullStore>(
    store: &S,
    id: &str,
    by: Actor,
) -> Result<Record, Problem> {
    let record = find_record(store, id).await?;
    if !store.audit_reveal(record.id, by).await? {
        let status = record.state.status();
        let detail = format!("only a completed record has a response; this one is {status}");
        return Err(Problem::conflict(status, detail));
    }
    tracing::info!(id = %record.id, "an operator revealed a response");
    // Read again: the response may have been erased in between.
    find_record(store, id).await
}

pub(super) async fn erase_response<S: FullStore>(
    store: &S,
    id: &str,
    by: Actor,
) -> Result<OperationId, Problem> {
    let record = find_record(store, id).await?;
    if store.erase(record.id, by).await? {
        tracing::info!(id = %record.id, "an operator erased a response");
        return Ok(record.id);
    }
    let status = record.state.status();
    let detail = format!("only a completed record has a response; this one is {status}");
    Err(Problem::conflict(status, detail))
}

/// The problem for a decision that the state machine refused.
fn conflict(fenced: Fenced, record: &Record) -> Problem {
    let Some((status, attempt)) = fenced.found else {
        return Problem::record_not_found();
    };
    let detail = match (status, &record.state) {
        (Status::Unknown, _) => format!(
            "the decision names another attempt than the current one ({attempt}); reload the record"
        ),
        (_, State::Unknown(_)) => {
            format!("another decision came first: the record is {status} now")
        }
        (_, _) => {
            format!("only a record with status unknown can be resolved; this one is {status}")
        }
    };
    Problem::conflict(status, detail)
}
