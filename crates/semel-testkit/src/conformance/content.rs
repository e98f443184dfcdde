//! Stored content comes back byte for byte.

use bytes::Bytes;
use semel_core::{Completion, Held, Resource, Response, Verdict};

use super::fixture::{again, completion, request, verdict};
use super::{Fixture, Subject};

/// Stores a response under its own key and asks for it again, in both ways that lead to it.
async fn comes_back<S: Subject>(f: &Fixture<S>, name: &str, response: Response) {
    let resource = None;
    let whole = Completion { response, resource };
    let first = request(name);
    let grant = f.execute(first.clone()).await;
    assert_eq!(f.complete(grant.fence, whole.clone()).await, Held::Applied);
    let replay = f.replay(again(&first)).await;
    assert!(
        replay.response == whole.response,
        "{name}: the replay differs"
    );
    let again = f.complete(grant.fence, whole).await;
    assert_eq!(again, Held::Repeated, "{name}: the same write again");
}

fn with_body(body: Option<Bytes>) -> Response {
    Response {
        body,
        ..completion("").response
    }
}

fn with_headers(headers: Vec<(Box<str>, Bytes)>) -> Response {
    Response {
        headers,
        ..completion("paid").response
    }
}

/// Bodies may contain every byte value at every position.
pub async fn binary_bodies_come_back_unchanged<S: Subject>(f: Fixture<S>) {
    let all: Bytes = (0..=255u8).collect();
    comes_back(&f, "all bytes", with_body(Some(all))).await;
    comes_back(&f, "one NUL", with_body(Some(Bytes::from_static(b"\0")))).await;
    comes_back(
        &f,
        "ends in NUL",
        with_body(Some(Bytes::from_static(b"a\0"))),
    )
    .await;
    comes_back(
        &f,
        "not UTF-8",
        with_body(Some(Bytes::from_static(b"\xff\xfe{"))),
    )
    .await;
    let json = br#"{"b":1.0,"a":9007199254740993,"a":"\u0000"}"#;
    comes_back(
        &f,
        "JSON as it was written",
        with_body(Some(Bytes::from_static(json))),
    )
    .await;
}

/// An empty body is not the same as no body.
pub async fn an_empty_body_differs_from_no_body<S: Subject>(f: Fixture<S>) {
    comes_back(&f, "empty", with_body(Some(Bytes::new()))).await;
    comes_back(&f, "none", with_body(None)).await;
}

/// A body of 1 MiB comes back complete.
pub async fn a_large_body_comes_back_whole<S: Subject>(f: Fixture<S>) {
    let large: Vec<u8> = (0u32..1 << 18).flat_map(u32::to_le_bytes).collect();
    comes_back(&f, "large", with_body(Some(large.into()))).await;
}

/// Repeated headers keep their lines and their order.
pub async fn headers_keep_lines_and_order<S: Subject>(f: Fixture<S>) {
    let lines = ["b", "a", "b", "B", "a", "b"];
    let headers = lines
        .iter()
        .zip(0u8..)
        .map(|(name, n)| ((*name).into(), vec![n].into()));
    comes_back(&f, "repeated", with_headers(headers.collect())).await;
    comes_back(&f, "none", with_headers(vec![])).await;
}

/// Header values may be empty, not UTF-8, or contain separators.
pub async fn binary_header_values_come_back_unchanged<S: Subject>(f: Fixture<S>) {
    let values: [&[u8]; 6] = [b"", b"\xff\xfe", b"a\0b", b": \r\n", b"\"quoted\", x", b" "];
    let headers = values
        .iter()
        .map(|value| ("x-a".into(), Bytes::from_static(value)));
    comes_back(&f, "values", with_headers(headers.collect())).await;
    comes_back(
        &f,
        "empty name",
        with_headers(vec![("".into(), Bytes::new())]),
    )
    .await;
}

/// Two hundred headers, one of them long.
pub async fn many_headers_come_back<S: Subject>(f: Fixture<S>) {
    let mut headers: Vec<(Box<str>, Bytes)> = (0..200)
        .map(|n| (format!("x-{n}").into(), format!("value {n}").into()))
        .collect();
    headers.push(("x-long".into(), vec![b'x'; 70_000].into()));
    comes_back(&f, "many", with_headers(headers)).await;
}

/// The smallest and the largest status and schema version come back.
pub async fn extreme_numbers_come_back_unchanged<S: Subject>(f: Fixture<S>) {
    for (status, schema_version) in [(100, 0), (999, u16::MAX), (200, 1), (599, 32_768)] {
        let response = Response {
            status,
            schema_version,
            ..completion("paid").response
        };
        comes_back(&f, &status.to_string(), response).await;
    }
}

/// The resource is stored with the response, in any script.
pub async fn the_resource_comes_back<S: Subject>(f: Fixture<S>) {
    let resources = [
        ("payment", "pay_789"),
        ("", ""),
        ("zahlung-ü", "東京 🦀"),
        ("a/b", "c d"),
    ];
    for (place, (kind, id)) in resources.into_iter().enumerate() {
        let resource = Some(Resource {
            kind: kind.into(),
            id: id.into(),
        });
        let whole = Completion {
            resource: resource.clone(),
            ..completion("paid")
        };
        let first = request(&format!("k{place}"));
        let grant = f.execute(first.clone()).await;
        f.complete(grant.fence, whole.clone()).await;
        assert_eq!(f.replay(again(&first)).await.resource, resource);
        assert_eq!(f.complete(grant.fence, whole).await, Held::Repeated);
    }
}

/// A response from reconciliation is stored as exactly as one from a holder.
pub async fn a_resolved_response_comes_back_unchanged<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.lost(first.clone()).await;
    let mut found = completion("");
    found.response.body = Some((0..=255u8).collect());
    found
        .response
        .headers
        .push(("x".into(), Bytes::from_static(b"\xff\0")));
    f.resolve(verdict(grant.fence, Verdict::Completed(found.clone())))
        .await;
    assert_eq!(f.replay(again(&first)).await.response, found.response);
}

/// Recovery data may contain any bytes.
pub async fn binary_recovery_data_comes_back_unchanged<S: Subject>(f: Fixture<S>) {
    let first = request("k");
    let grant = f.execute(first.clone()).await;
    let all: Vec<u8> = (0..=255).collect();
    let point = super::fixture::point("phase ü 🦀", &all);
    assert_eq!(f.advance(grant.fence, point.clone()).await, Held::Applied);
    assert_eq!(f.record(first.id).await.recovery, Some(point));
}

/// The owner's name comes back, in any script.
pub async fn the_owner_comes_back<S: Subject>(f: Fixture<S>) {
    let mut first = request("k");
    first.owner = "höst-1/42 🦀".into();
    f.execute(first.clone()).await;
    assert_eq!(f.record(first.id).await.owner, first.owner);
}
