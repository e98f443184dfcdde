//! What a retry of a completed operation gets: `schema`, `replay`, `on_schema_change`, `on_revoked`,
//! `[route.reconstruct]` and `[route.authorize]`.

use http::HeaderValue;
use semel_http::{OnSchemaChange, ReplayMode};
use toml::Spanned;

use super::poll::Poll;
use super::reconcile::{ReconcileContext, credential};
use super::table::{Table, choice};

/// The settings of a route that concern replays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplayConfig {
    /// The schema version of the route's responses; 0 is none.
    pub schema: u16,
    /// What a retry gets.
    pub mode: ReplayMode,
    /// What a retry gets where the stored response has another schema version.
    pub on_schema_change: OnSchemaChange,
    /// How the current representation is fetched.
    pub reconstruct: Option<ReplayRequest>,
    /// The request that is sent before every replay, to ask whether the caller may still see it.
    pub authorize: Option<ReplayRequest>,
}

/// A request that a replay waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayRequest {
    /// The request to send.
    pub get: Poll,
    /// Sent as `Authorization` in place of the caller's credentials; never shown.
    pub authorization: Option<HeaderValue>,
}

/// The keys of this module, which have no effect on a route that guards nothing.
pub(super) const KEYS: [&str; 6] = [
    "schema",
    "replay",
    "on_schema_change",
    "on_revoked",
    "reconstruct",
    "authorize",
];

pub(super) fn read(table: &mut Table<'_>, context: &ReconcileContext<'_>) -> ReplayConfig {
    let schema = table.integer("schema", 1..=usize::from(u16::MAX));
    let schema = schema.and_then(|schema| u16::try_from(schema.into_inner()).ok());
    let mode = table.parsed("replay", |text| {
        choice(
            text,
            &[
                ("stored", ReplayMode::Stored),
                ("reconstruct", ReplayMode::Reconstruct),
            ],
        )
    });
    let on_schema_change = table.parsed("on_schema_change", |text| {
        choice(
            text,
            &[
                ("replay", OnSchemaChange::Replay),
                ("reconstruct", OnSchemaChange::Reconstruct),
                ("refuse", OnSchemaChange::Refuse),
            ],
        )
    });
    let on_revoked = table.parsed("on_revoked", |text| {
        choice(text, &[("replay", false), ("ask", true)])
    });
    let reconstruct = table
        .table("reconstruct", "[route.reconstruct]")
        .and_then(|request| read_request(request, Some(context)));
    let authorize = table
        .table("authorize", "[route.authorize]")
        .and_then(|request| read_request(request, None));

    check_schema(table, on_schema_change.as_ref());
    let mode = mode.map(Spanned::into_inner).unwrap_or_default();
    let on_schema_change = on_schema_change
        .map(Spanned::into_inner)
        .unwrap_or_default();
    let reconstructs =
        mode == ReplayMode::Reconstruct || on_schema_change == OnSchemaChange::Reconstruct;
    let by = if mode == ReplayMode::Reconstruct {
        "replay"
    } else {
        "on_schema_change"
    };
    check_request(table, "reconstruct", by, reconstructs, "reconstruct");
    let asks = on_revoked.is_some_and(Spanned::into_inner);
    check_request(table, "authorize", "on_revoked", asks, "ask");
    ReplayConfig {
        schema: schema.unwrap_or_default(),
        mode,
        on_schema_change,
        reconstruct,
        authorize,
    }
}

fn check_schema(table: &Table<'_>, on_change: Option<&Spanned<OnSchemaChange>>) {
    if let Some(on_change) = on_change
        && table.key_span("schema").is_none()
    {
        table.problems.at(
            on_change.span(),
            "`on_schema_change` has no effect without the schema version of the route: add `schema = 1`",
        );
    }
}

/// A request is there where a setting needs it, and only there.
fn check_request(table: &Table<'_>, key: &str, by: &str, needed: bool, value: &str) {
    match (table.key_span(key), needed) {
        (None, true) => {
            let span = table.key_span(by).unwrap_or_else(|| table.span());
            let message = format!(
                "`{by} = \"{value}\"` needs a request: add `[route.{key}]` with \
                 `get = \"GET /payments/{{resource_id}}\"`"
            );
            table.problems.at(span, message);
        }
        (Some(span), false) => {
            let message = format!("`{key}` has no effect without `{by} = \"{value}\"`");
            table.problems.at(span, message);
        }
        (Some(_), true) | (None, false) => {}
    }
}

/// `get`, and with an environment `authorization_env`.
fn read_request(
    mut table: Table<'_>,
    context: Option<&ReconcileContext<'_>>,
) -> Option<ReplayRequest> {
    table.require("get", "get = \"GET /payments/{resource_id}\"");
    let get = table.parsed("get", str::parse);
    let authorization = context.and_then(|context| {
        table.parsed("authorization_env", |name| {
            credential(name, context.environment)
        })
    });
    table.finish();
    Some(ReplayRequest {
        get: get?.into_inner(),
        authorization: authorization.map(Spanned::into_inner),
    })
}
