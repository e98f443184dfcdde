//! What identifies a request: the vectors of `packages/scenarios/fingerprints.json`, in this language and in PostgreSQL.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use semel_client::Request;
use serde::Deserialize;
use tokio_postgres::types::Json;

use crate::world::Place;

const VECTORS: &str = include_str!("../../../../packages/scenarios/fingerprints.json");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    fingerprints: Vec<Vector>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vector {
    name: String,
    method: String,
    url: String,
    stored_url: String,
    content_type: Option<String>,
    body: Option<String>,
    body_base64: Option<String>,
    fingerprint: String,
}

impl Vector {
    fn body(&self) -> Bytes {
        match (&self.body, &self.body_base64) {
            (Some(text), _) => Bytes::from(text.clone()),
            (None, Some(encoded)) => STANDARD.decode(encoded).unwrap().into(),
            (None, None) => Bytes::new(),
        }
    }
}

fn vectors() -> Vec<Vector> {
    let file: File = serde_json::from_str(VECTORS).unwrap();
    assert!(file.fingerprints.len() > 20, "the file is nearly empty");
    file.fingerprints
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

#[test]
fn requests_have_the_fingerprints_of_the_file() {
    for vector in vectors() {
        let method = vector.method.parse().unwrap();
        let mut request = Request::new(method, &vector.url)
            .unwrap()
            .body(vector.body());
        if let Some(content_type) = &vector.content_type {
            let bytes: Vec<u8> = content_type
                .chars()
                .map(|c| u8::try_from(c).unwrap())
                .collect();
            let value = HeaderValue::from_bytes(&bytes).unwrap();
            request = request.header(CONTENT_TYPE, value);
        }
        assert_eq!(request.url.as_str(), vector.stored_url, "{}", vector.name);
        assert_eq!(
            hex(&request.fingerprint()),
            vector.fingerprint,
            "{}",
            vector.name
        );
    }
}

#[tokio::test]
async fn the_function_in_postgres_has_the_fingerprints_of_the_file() {
    let Some(Place::Postgres(database)) = Place::postgres().await else {
        return;
    };
    let client = database.client().await;
    for vector in vectors() {
        let headers: Vec<_> = vector
            .content_type
            .iter()
            .map(|value| ("Content-Type", value))
            .collect();
        let row = client
            .query_one(
                "SELECT semel.request_fingerprint($1, $2, $3, $4)",
                &[
                    &vector.method,
                    &vector.stored_url,
                    &Json(headers),
                    &&vector.body()[..],
                ],
            )
            .await
            .unwrap();
        let fingerprint: Vec<u8> = row.get(0);
        assert_eq!(hex(&fingerprint), vector.fingerprint, "{}", vector.name);
    }
}
