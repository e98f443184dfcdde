//! First step: is this request guarded, and under which key? Decided from the head alone,
//! before a byte of the body is asked for.

use std::sync::Arc;

use http::{HeaderValue, Request, Uri};
use semel_core::Key;

use crate::answer::Refusal;
use crate::reason;
use crate::route::{Guard, KeyRule};
use crate::rules::Rules;

pub(crate) enum Extracted {
    /// Not guarded: passes untouched.
    Pass,
    Refuse(Refusal),
    Guard(Arc<Guard>, Key, HeaderValue),
}

pub(crate) fn extract<B>(rules: &Rules, request: &Request<B>) -> Extracted {
    let path = original_uri(request.extensions(), request.uri()).path();
    let Some(guard) = rules.guard(request.method(), path) else {
        return Extracted::Pass;
    };
    if guard.route.key == KeyRule::Ignored {
        return Extracted::Pass;
    }
    let lines = request.headers().get_all(&rules.header);
    let key = Key::parse(
        &guard.syntax(rules.dialect),
        lines.iter().map(HeaderValue::as_bytes),
    );
    match (key, lines.iter().next(), guard.route.key) {
        (Ok(Some(key)), Some(line), _) => Extracted::Guard(Arc::clone(guard), key, line.clone()),
        (Err(error), _, _) => Extracted::Refuse(Refusal::new(&reason::KEY_MALFORMED).detail(
            format!("The header {} cannot be read: {error}.", rules.header),
        )),
        (Ok(_), _, KeyRule::Required) => Extracted::Refuse(Refusal::new(&reason::KEY_MISSING)),
        (Ok(_), _, KeyRule::Optional | KeyRule::Ignored) => {
            guard.meters.unguarded.increment(1);
            Extracted::Pass
        }
    }
}

/// The target as the client sent it. A router that nests others cuts the prefix off, and two
/// operations of two versions of an API would look like one.
pub(crate) fn original_uri<'a>(extensions: &'a http::Extensions, uri: &'a Uri) -> &'a Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    let _ = extensions;
    uri
}
