//! The `OpenAPI` document of the admin listener, generated from the handlers' annotations and types.
//!
//! Routes are added with [`documented`], which takes a handler together with its description, so
//! every route is in `/openapi.json`.

use std::collections::BTreeMap;

use axum::handler::Handler;
use axum::routing::MethodRouter;
use utoipa::__dev::{SchemaReferences, Tags};
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Paths;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{self, Components, Content, Ref, RefOr, ResponseBuilder};
use utoipa::{IntoResponses, Modify, OpenApi};
use utoipa_axum::PathItemExt as _;
use utoipa_axum::router::UtoipaMethodRouter;

use super::problem;

/// The parts of the document that all paths share.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Semel admin API",
        description = "Records of idempotency keys, and the operator actions on them. `operation` is the name of a command such as `create_payment`; a record is one use of a key, and `{id}` and `operation_id` are its id; an attempt is one execution.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    components(schemas(problem::Body<'_>)),
    security(("token" = []), ("session" = [])),
    modifiers(&SecuritySchemes),
)]
pub(super) struct BaseDocument;

struct SecuritySchemes;

impl Modify for SecuritySchemes {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let components = document.components.get_or_insert_with(Components::new);
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The operator token or the viewer token."));
        components.add_security_scheme("token", SecurityScheme::Http(token.build()));
        let session =
            "A console session. With `secure_cookie` the cookie name starts with `__Host-`.";
        let session = ApiKeyValue::with_description("semel_session", session);
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(session)));
        let csrf = "Required with a session: its CSRF token.";
        let csrf = ApiKeyValue::with_description("X-Semel-CSRF", csrf);
        components.add_security_scheme("csrf", SecurityScheme::ApiKey(ApiKey::Header(csrf)));
    }
}

/// A route with its description: the type `__path_NAME` that `#[utoipa::path]` generates for a
/// function `NAME`. (utoipa-axum's `routes!` would do this, but does not accept generic handlers.)
#[allow(clippy::needless_pass_by_value, reason = "as axum takes them")]
pub(super) fn documented<D, H, T, S>(_description: D, handler: H) -> UtoipaMethodRouter<S>
where
    D: utoipa::Path + SchemaReferences + for<'t> Tags<'t>,
    H: Handler<T, S>,
    T: 'static,
    S: Clone + Send + Sync + 'static,
{
    let mut schemas = Vec::new();
    D::schemas(&mut schemas);
    let methods = D::methods();
    let mut operation = D::operation();
    let tags = D::tags().into_iter().map(ToOwned::to_owned);
    operation.tags.get_or_insert_default().extend(tags);
    let routed = methods.iter().fold(MethodRouter::new(), |router, method| {
        router.on(method.to_method_filter(), handler.clone())
    });
    let mut paths = Paths::new();
    paths.add_path_operation(D::path(), methods, operation);
    (schemas, paths, routed)
}

/// A status and its description.
type Meaning = (&'static str, &'static str);

fn problems<const N: usize>(meanings: [Meaning; N]) -> BTreeMap<String, RefOr<openapi::Response>> {
    let problem = |(status, meaning): Meaning| {
        let content = Content::new(Some(Ref::from_schema_name("Problem")));
        let mut response = ResponseBuilder::new()
            .description(meaning)
            .content("application/problem+json", content);
        if status == "401" {
            let header = HeaderBuilder::new().description(Some("`Bearer`."));
            response = response.header("WWW-Authenticate", header.build());
        }
        (status.to_owned(), RefOr::T(response.build()))
    };
    meanings.into_iter().map(problem).collect()
}

/// Responses of every path except the probes.
pub(super) struct AuthProblems;

impl IntoResponses for AuthProblems {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([
            ("401", "No token or session, or an invalid one."),
            (
                "403",
                "Operator role required; or the request may come from another site; or no admin token \
                 is set, and the request is not from and to this machine.",
            ),
        ])
    }
}

/// Responses of every path that reads the store.
pub(super) struct StoreProblems;

impl IntoResponses for StoreProblems {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([
            ("500", "The response could not be built."),
            ("503", "The store is unavailable."),
        ])
    }
}

/// Responses of paths with query parameters.
pub(super) struct QueryProblems;

impl IntoResponses for QueryProblems {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([("400", "Invalid query parameters.")])
    }
}

/// Responses of paths with an id.
pub(super) struct NotFoundProblem;

impl IntoResponses for NotFoundProblem {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([("404", "Nothing has that id.")])
    }
}

/// Responses of paths that take an operator action.
pub(super) struct DecisionProblems;

impl IntoResponses for DecisionProblems {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([
            ("400", "The body is incomplete."),
            ("409", "The record's status does not allow this."),
            ("413", "The body is too large."),
            ("415", "The body is not JSON."),
            ("422", "Invalid request body."),
        ])
    }
}
