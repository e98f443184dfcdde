//! The stylesheet, the script and the icon: part of the program, and named by what they hold, so
//! that a browser never asks for the same one twice.

use std::fmt::Write as _;
use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use sha2::{Digest as _, Sha256};

/// A year: the name changes whenever the content does.
const FOR_EVER: &str = "public, max-age=31536000, immutable";

/// One of them.
struct Asset {
    /// Its address.
    path: String,
    name: String,
    etag: String,
    kind: &'static str,
    content: &'static [u8],
}

impl Asset {
    fn new(stem: &str, ending: &str, kind: &'static str, content: &'static [u8]) -> Self {
        let digest = Sha256::digest(content);
        let hash = digest.iter().take(8).fold(String::new(), |mut hash, byte| {
            // Writing to a string cannot fail.
            let _ = write!(hash, "{byte:02x}");
            hash
        });
        let name = format!("{stem}-{hash}.{ending}");
        Self {
            path: format!("/assets/{name}"),
            name,
            etag: format!("\"{hash}\""),
            kind,
            content,
        }
    }
}

static STYLE: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_bytes!("../../../assets/console.css");
    Asset::new("console", "css", "text/css; charset=utf-8", content)
});

static SCRIPT: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_bytes!("../../../assets/console.js");
    Asset::new("console", "js", "text/javascript; charset=utf-8", content)
});

static ICON: LazyLock<Asset> = LazyLock::new(|| {
    let content = include_bytes!("../../../assets/icon.svg");
    Asset::new("icon", "svg", "image/svg+xml", content)
});

/// Where the parts of a page are.
#[derive(Clone, Copy)]
pub(super) struct Links {
    pub(super) style: &'static str,
    pub(super) script: &'static str,
    pub(super) icon: &'static str,
}

pub(super) fn links() -> Links {
    Links {
        style: &STYLE.path,
        script: &SCRIPT.path,
        icon: &ICON.path,
    }
}

/// They say nothing about anybody, so no session is asked for.
pub(in crate::admin) fn router() -> Router {
    Router::new().route("/assets/{name}", get(asset))
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let all = [&STYLE, &SCRIPT, &ICON];
    let Some(asset) = all.into_iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "there is nothing here\n").into_response();
    };
    let etag = HeaderValue::from_static(&asset.etag);
    let lasting = HeaderValue::from_static(FOR_EVER);
    if headers.get(IF_NONE_MATCH) == Some(&etag) {
        let same = [(ETAG, etag), (CACHE_CONTROL, lasting)];
        return (StatusCode::NOT_MODIFIED, same).into_response();
    }
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (ETAG, etag),
        (CACHE_CONTROL, lasting),
    ];
    (headers, asset.content).into_response()
}
