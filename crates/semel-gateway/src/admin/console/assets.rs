//! The stylesheet, the script and the icon. They are compiled in and named by their hash, so that
//! browsers can cache them forever.

use std::sync::LazyLock;

use axum::Router;
use axum::extract::Path;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use semel_core::hex;
use sha2::{Digest as _, Sha256};

/// A year: the name changes with the content.
const CACHE_FOREVER: &str = "public, max-age=31536000, immutable";

struct Asset {
    path: String,
    name: String,
    etag: String,
    kind: &'static str,
    content: &'static [u8],
}

impl Asset {
    fn new(stem: &str, ending: &str, kind: &'static str, content: &'static [u8]) -> Self {
        let digest = Sha256::digest(content);
        let hash = hex(&digest[..8]);
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

/// The paths of the assets.
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

/// Open to everyone: assets contain no data.
pub(in crate::admin) fn router() -> Router {
    Router::new().route("/assets/{name}", get(asset))
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    let all = [&STYLE, &SCRIPT, &ICON];
    let Some(asset) = all.into_iter().find(|asset| asset.name == name) else {
        return (StatusCode::NOT_FOUND, "not found\n").into_response();
    };
    let etag = HeaderValue::from_static(&asset.etag);
    let cache = HeaderValue::from_static(CACHE_FOREVER);
    if headers.get(IF_NONE_MATCH) == Some(&etag) {
        let headers = [(ETAG, etag), (CACHE_CONTROL, cache)];
        return (StatusCode::NOT_MODIFIED, headers).into_response();
    }
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(asset.kind)),
        (ETAG, etag),
        (CACHE_CONTROL, cache),
    ];
    (headers, asset.content).into_response()
}
