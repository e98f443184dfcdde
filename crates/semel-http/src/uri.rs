//! The request target as the client sent it.

use http::Uri;

/// The target before any router changed it. A router that nests another cuts the prefix off, and
/// the same path under two API versions would look like one operation.
pub(crate) fn original_uri<'a>(extensions: &'a http::Extensions, uri: &'a Uri) -> &'a Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    let _ = extensions;
    uri
}
