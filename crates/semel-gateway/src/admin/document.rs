//! The listener's paths, as `OpenAPI` describes them. Written beside the handlers, and generated from
//! their types.
//!
//! A path is added by [`documented`], which takes a handler together with what is written about
//! it. So there is none that is not in `/openapi.json`.

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

/// What is true of all paths.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Semel, for operators",
        description = "What is remembered of each operation, and the decisions that only a person can take.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    components(schemas(problem::Body<'_>)),
    security(("token" = []), ("session" = [])),
    modifiers(&Schemes),
)]
pub(super) struct Common;

struct Schemes;

impl Modify for Schemes {
    fn modify(&self, document: &mut openapi::OpenApi) {
        let components = document.components.get_or_insert_with(Components::new);
        let token = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The token of operators, or that of viewers."));
        components.add_security_scheme("token", SecurityScheme::Http(token.build()));
        let session = "A session of the console. With `secure_cookie` its name begins `__Host-`.";
        let session = ApiKeyValue::with_description("semel_session", session);
        components.add_security_scheme("session", SecurityScheme::ApiKey(ApiKey::Cookie(session)));
        let csrf = "With a session: the secret of its forms.";
        let csrf = ApiKeyValue::with_description("X-Semel-CSRF", csrf);
        components.add_security_scheme("csrf", SecurityScheme::ApiKey(ApiKey::Header(csrf)));
    }
}

/// A handler, with what is written about it: the type `__path_NAME` that `#[utoipa::path]` makes
/// beside a function `NAME`. (The macro `routes!` of utoipa-axum would find that by itself, but
/// takes no generic handlers.)
#[allow(clippy::needless_pass_by_value, reason = "as axum takes them")]
pub(super) fn documented<D, H, T, S>(_written: D, handler: H) -> UtoipaMethodRouter<S>
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

/// A status, and what it means there.
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

/// What every path but the probes may answer.
pub(super) struct Refused;

impl IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([
            ("401", "No token and no session, or a wrong one."),
            (
                "403",
                "Only an operator may do that; or the request may be another site's; or there is no \
                 token, and the request is not to this machine.",
            ),
        ])
    }
}

/// What every path may answer that asks the store.
pub(super) struct Unanswered;

impl IntoResponses for Unanswered {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([
            ("500", "The answer cannot be written."),
            ("503", "The store cannot answer."),
        ])
    }
}

/// What a path with a query may answer.
pub(super) struct NotAsked;

impl IntoResponses for NotAsked {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([("400", "The query cannot be understood.")])
    }
}

/// What a path with an id may answer.
pub(super) struct NotThere;

impl IntoResponses for NotThere {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([("404", "There is nothing of that id.")])
    }
}

/// What a path may answer that takes a decision.
pub(super) struct NotDecided;

impl IntoResponses for NotDecided {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        problems([
            ("400", "The body did not arrive as a whole."),
            ("409", "The operation is not in a state for that."),
            ("413", "The body is too large."),
            ("415", "The body is not JSON."),
            ("422", "The decision cannot be understood."),
        ])
    }
}
