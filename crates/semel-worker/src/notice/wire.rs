//! A notice as JSON, readable in the inbox table.

use bytes::Bytes;
use semel_core::{Key, Response};
use serde::{Deserialize, Serialize};

use super::{Notice, NoticeTarget, NoticeVerdict};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Serialize, Deserialize)]
struct Stored {
    #[serde(rename = "about")]
    target: StoredTarget,
    #[serde(rename = "says")]
    verdict: StoredVerdict,
    evidence: Data,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredTarget {
    Operation(String),
    Key {
        tenant: Box<str>,
        key: Box<str>,
        operations: Vec<Box<str>>,
    },
    Resource(Box<str>),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredVerdict {
    Completed {
        status: u16,
        headers: Vec<(Box<str>, Data)>,
        body: Option<Data>,
        schema_version: u16,
    },
    NotExecuted,
}

/// A string if the bytes are UTF-8, else an array of bytes.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Data {
    Text(String),
    Bytes(Vec<u8>),
}

pub(super) fn write(notice: &Notice) -> Bytes {
    let stored = Stored {
        target: match &notice.target {
            NoticeTarget::Operation(id) => StoredTarget::Operation(id.to_string()),
            NoticeTarget::Key {
                tenant,
                key,
                operations,
            } => StoredTarget::Key {
                tenant: tenant.clone(),
                key: key.as_str().into(),
                operations: operations.clone(),
            },
            NoticeTarget::Resource(id) => StoredTarget::Resource(id.clone()),
        },
        verdict: match &notice.verdict {
            NoticeVerdict::Completed(response) => StoredVerdict::Completed {
                status: response.status,
                headers: response
                    .headers
                    .iter()
                    .map(|(name, value)| (name.clone(), value.into()))
                    .collect(),
                body: response.body.as_ref().map(Data::from),
                schema_version: response.schema_version,
            },
            NoticeVerdict::NotExecuted => StoredVerdict::NotExecuted,
        },
        evidence: (&notice.evidence).into(),
    };
    // Strings, numbers and arrays of them always serialize. An empty message would be reported as
    // unreadable.
    serde_json::to_vec(&stored).unwrap_or_default().into()
}

pub(super) fn read(stored: &[u8]) -> Result<Notice, Error> {
    let stored: Stored = serde_json::from_slice(stored)?;
    Ok(Notice {
        target: match stored.target {
            StoredTarget::Operation(id) => NoticeTarget::Operation(id.parse()?),
            StoredTarget::Key {
                tenant,
                key,
                operations,
            } => NoticeTarget::Key {
                tenant,
                key: Key::new(key)?,
                operations,
            },
            StoredTarget::Resource(id) => NoticeTarget::Resource(id),
        },
        verdict: match stored.verdict {
            StoredVerdict::Completed {
                status,
                headers,
                body,
                schema_version,
            } => NoticeVerdict::Completed(Response {
                status,
                headers: headers
                    .into_iter()
                    .map(|(name, value)| (name, value.into()))
                    .collect(),
                body: body.map(Bytes::from),
                schema_version,
            }),
            StoredVerdict::NotExecuted => NoticeVerdict::NotExecuted,
        },
        evidence: stored.evidence.into(),
    })
}

impl From<&Bytes> for Data {
    fn from(bytes: &Bytes) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(bytes.to_vec()),
        }
    }
}

impl From<Data> for Bytes {
    fn from(data: Data) -> Self {
        match data {
            Data::Text(text) => text.into(),
            Data::Bytes(bytes) => bytes.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use semel_core::OperationId;

    use super::*;

    #[test]
    fn a_serialized_notice_parses_to_the_same_notice() {
        let response = Response {
            status: 201,
            headers: vec![
                ("etag".into(), Bytes::from_static(b"\"1\"")),
                ("odd".into(), Bytes::from_static(b"\xff\x00")),
            ],
            body: Some(Bytes::from_static(b"{\"n\":9007199254740993}\0\xc3")),
            schema_version: 3,
        };
        let bodiless = Response {
            body: None,
            headers: vec![],
            ..response.clone()
        };
        let empty = Response {
            body: Some(Bytes::new()),
            ..bodiless.clone()
        };
        let key = NoticeTarget::Key {
            tenant: "acme".into(),
            key: Key::new("k \"1\"").unwrap(),
            operations: vec!["pay".into(), "refund".into()],
        };
        for target in [
            NoticeTarget::Operation(OperationId::generate()),
            key,
            NoticeTarget::Resource("pay_1".into()),
        ] {
            for verdict in [
                NoticeVerdict::Completed(response.clone()),
                NoticeVerdict::Completed(bodiless.clone()),
                NoticeVerdict::Completed(empty.clone()),
                NoticeVerdict::NotExecuted,
            ] {
                for evidence in [&b""[..], b"{}", b"\xff"] {
                    let notice = Notice {
                        target: target.clone(),
                        verdict: verdict.clone(),
                        evidence: Bytes::from_static(evidence),
                    };
                    let read = Notice::from_bytes(&notice.to_bytes()).unwrap();
                    assert_eq!(read, notice);
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_not_a_notice_are_refused() {
        for stored in [
            "",
            "{}",
            r#"{"about":{"operation":"1"},"says":"not_executed","evidence":""}"#,
            r#"{"about":{"resource":"1"},"says":"perhaps","evidence":""}"#,
        ] {
            assert!(Notice::from_bytes(stored.as_bytes()).is_err(), "{stored}");
        }
    }

    #[test]
    fn neither_key_nor_content_shows_in_debug_output() {
        let notice = Notice {
            target: NoticeTarget::Key {
                tenant: "acme".into(),
                key: Key::new("secret").unwrap(),
                operations: vec![],
            },
            verdict: NoticeVerdict::NotExecuted,
            evidence: Bytes::from_static(b"secret"),
        };
        let shown = format!("{notice:?}");
        assert!(!shown.contains("secret"), "{shown}");
    }
}
