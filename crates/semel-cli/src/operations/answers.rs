//! Responses of the admin API: the fields that are shown. Unknown fields are ignored.

use serde::Deserialize;
use serde_json::value::RawValue;

/// A page of operations.
#[derive(Deserialize)]
pub(super) struct Page {
    pub(super) operations: Vec<Summary>,
    pub(super) next: Option<String>,
}

/// The same page, with the JSON text of each operation.
#[derive(Deserialize)]
pub(super) struct RawPage {
    pub(super) operations: Vec<Box<RawValue>>,
    pub(super) next: Option<String>,
}

/// An operation in a list.
#[derive(Deserialize)]
pub(super) struct Summary {
    pub(super) id: String,
    pub(super) tenant: String,
    pub(super) operation: String,
    pub(super) key: String,
    pub(super) status: String,
    pub(super) attempt: u32,
    pub(super) last_error: Option<String>,
    pub(super) dead_lettered_at: Option<String>,
    pub(super) created_at: String,
    pub(super) updated_at: String,
}

/// An operation with its history.
#[derive(Deserialize)]
pub(super) struct Operation {
    #[serde(flatten)]
    pub(super) summary: Summary,
    pub(super) fingerprint: String,
    pub(super) resource: Option<Resource>,
    pub(super) resolved_by: Option<String>,
    pub(super) recovery_point: Option<String>,
    pub(super) owner: Option<String>,
    pub(super) locked_until: Option<String>,
    pub(super) reconcile_after: Option<String>,
    pub(super) reconcile_attempts: Option<u32>,
    pub(super) completed_at: Option<String>,
    pub(super) expires_at: Option<String>,
    pub(super) body_expires_at: Option<String>,
    pub(super) purge_at: Option<String>,
    pub(super) response: Option<Response>,
    pub(super) history: Vec<Entry>,
    pub(super) history_intact: bool,
    pub(super) history_problem: Option<String>,
}

/// The created resource.
#[derive(Deserialize)]
pub(super) struct Resource {
    pub(super) r#type: String,
    pub(super) id: String,
}

/// The stored response.
#[derive(Deserialize)]
pub(super) struct Response {
    pub(super) status: u16,
    #[serde(default)]
    pub(super) schema_version: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body_bytes: Option<u64>,
    pub(super) body: Option<String>,
}

/// A history entry.
#[derive(Deserialize)]
pub(super) struct Entry {
    pub(super) at: String,
    pub(super) attempt: u32,
    pub(super) what: String,
    pub(super) actor: String,
    pub(super) code: Option<String>,
    pub(super) reason: Option<String>,
    pub(super) evidence: Option<String>,
    #[serde(default)]
    pub(super) evidence_erased: bool,
}

/// The status after a decision.
#[derive(Deserialize)]
pub(super) struct Decided {
    pub(super) id: String,
    pub(super) status: String,
}

/// The result of `reconcile`.
#[derive(Deserialize)]
pub(super) struct Reconciled {
    pub(super) id: String,
    pub(super) outcome: String,
    #[serde(default)]
    pub(super) code: Option<String>,
}

/// A problem response.
#[derive(Deserialize)]
pub(super) struct Problem {
    pub(super) code: String,
    #[serde(default)]
    pub(super) detail: String,
}
