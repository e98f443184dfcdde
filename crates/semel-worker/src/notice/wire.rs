//! A notice as JSON. Whoever reads the inbox table can read it, too.

use bytes::Bytes;
use semel_core::{Key, Response};
use serde::{Deserialize, Serialize};

use super::{About, Notice, Says};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Serialize, Deserialize)]
struct Stored {
    about: StoredAbout,
    says: StoredSays,
    evidence: Data,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredAbout {
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
enum StoredSays {
    Completed {
        status: u16,
        headers: Vec<(Box<str>, Data)>,
        body: Option<Data>,
        schema_version: u16,
    },
    NotExecuted,
}

/// Text where it is text, which it nearly always is; else the bytes.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Data {
    Text(String),
    Bytes(Vec<u8>),
}

pub(super) fn write(notice: &Notice) -> Bytes {
    let stored = Stored {
        about: match &notice.about {
            About::Operation(id) => StoredAbout::Operation(id.to_string()),
            About::Key {
                tenant,
                key,
                operations,
            } => StoredAbout::Key {
                tenant: tenant.clone(),
                key: key.as_str().into(),
                operations: operations.clone(),
            },
            About::Resource(id) => StoredAbout::Resource(id.clone()),
        },
        says: match &notice.says {
            Says::Completed(response) => StoredSays::Completed {
                status: response.status,
                headers: response
                    .headers
                    .iter()
                    .map(|(name, value)| (name.clone(), value.into()))
                    .collect(),
                body: response.body.as_ref().map(Data::from),
                schema_version: response.schema_version,
            },
            Says::NotExecuted => StoredSays::NotExecuted,
        },
        evidence: (&notice.evidence).into(),
    };
    // Strings, numbers and lists of them always have a JSON form; and what is empty would be
    // found unreadable, and reported, rather than taken for something.
    serde_json::to_vec(&stored).unwrap_or_default().into()
}

pub(super) fn read(stored: &[u8]) -> Result<Notice, Error> {
    let stored: Stored = serde_json::from_slice(stored)?;
    Ok(Notice {
        about: match stored.about {
            StoredAbout::Operation(id) => About::Operation(id.parse()?),
            StoredAbout::Key {
                tenant,
                key,
                operations,
            } => About::Key {
                tenant,
                key: Key::new(key)?,
                operations,
            },
            StoredAbout::Resource(id) => About::Resource(id),
        },
        says: match stored.says {
            StoredSays::Completed {
                status,
                headers,
                body,
                schema_version,
            } => Says::Completed(Response {
                status,
                headers: headers
                    .into_iter()
                    .map(|(name, value)| (name, value.into()))
                    .collect(),
                body: body.map(Bytes::from),
                schema_version,
            }),
            StoredSays::NotExecuted => Says::NotExecuted,
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
    fn notices_lead_back() {
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
        let key = About::Key {
            tenant: "acme".into(),
            key: Key::new("k \"1\"").unwrap(),
            operations: vec!["pay".into(), "refund".into()],
        };
        for about in [
            About::Operation(OperationId::generate()),
            key,
            About::Resource("pay_1".into()),
        ] {
            for says in [
                Says::Completed(response.clone()),
                Says::Completed(bodiless.clone()),
                Says::Completed(empty.clone()),
                Says::NotExecuted,
            ] {
                for evidence in [&b""[..], b"{}", b"\xff"] {
                    let notice = Notice {
                        about: about.clone(),
                        says: says.clone(),
                        evidence: Bytes::from_static(evidence),
                    };
                    let read = Notice::from_bytes(&notice.to_bytes()).unwrap();
                    assert_eq!(read, notice);
                }
            }
        }
    }

    #[test]
    fn what_is_no_notice_is_refused() {
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
            about: About::Key {
                tenant: "acme".into(),
                key: Key::new("secret").unwrap(),
                operations: vec![],
            },
            says: Says::NotExecuted,
            evidence: Bytes::from_static(b"secret"),
        };
        let shown = format!("{notice:?}");
        assert!(!shown.contains("secret"), "{shown}");
    }
}
