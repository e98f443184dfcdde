use std::convert::Infallible;

use http_body::Frame;
use http_body_util::{Full, StreamBody};
use semel_core::Memory;
use semel_worker::webhook::{Match, RecordSelector, Rules, Scheme, Source};

use super::*;

fn sources() -> Sources {
    let rules = Rules {
        completed: Some(Match {
            pointer: "/type".parse().unwrap(),
            equals: vec!["paid".into()],
        }),
        ..Rules::new(RecordSelector::Operation("/o".parse().unwrap()))
    };
    Sources::new([Source::new("psp", Scheme::Stripe, ["0123456789abcdef"], rules).unwrap()])
}

async fn send<B: Body<Data = Bytes>>(method: Method, path: &str, body: B) -> Response<Bytes> {
    let request = Request::builder().method(method).uri(path);
    let request = request.body(body).unwrap();
    answer(&Memory::default(), &sources(), request).await
}

/// A body that must not be read.
fn untouched() -> impl Body<Data = Bytes, Error = Infallible> {
    StreamBody::new(futures_util::stream::poll_fn(|_| panic!("it was read")))
}

#[tokio::test]
async fn unknown_sources_are_refused_before_the_body_is_read() {
    for path in [
        "/.semel/webhooks/",
        "/.semel/webhooks/other",
        "/.semel/webhooks/psp/",
        "/.semel/webhooks/psp/x",
        "/.semel/webhooks/%70sp",
        "/.semel/webhooks/PSP",
    ] {
        let answer = send(Method::POST, path, untouched()).await;
        assert_eq!(answer.status(), 404, "{path}");
    }
    let answer = send(Method::GET, "/.semel/webhooks/psp", untouched()).await;
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()[ALLOW]),
        (405, &HeaderValue::from_static("POST"))
    );
}

#[tokio::test]
async fn bodies_are_read_completely_and_bounded() {
    const PATH: &str = "/.semel/webhooks/psp";
    let sized = Full::new(Bytes::from(vec![b'x'; MAX_BODY + 1]));
    assert_eq!(send(Method::POST, PATH, sized).await.status(), 413);
    let most = Full::new(Bytes::from(vec![b'x'; MAX_BODY]));
    let answer = send(Method::POST, PATH, most).await;
    assert_eq!(answer.status(), 401);
    assert_eq!(answer.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");

    // Without an end: no more of it is read than what shows that it is too large.
    let mut read = 0;
    let endless = futures_util::stream::repeat_with(move || {
        read += 4096;
        assert!(read <= MAX_BODY + 4096, "{read} bytes were read");
        Ok::<_, Infallible>(Frame::data(Bytes::from_static(&[b'x'; 4096])))
    });
    let answer = send(Method::POST, PATH, StreamBody::new(endless)).await;
    assert_eq!(answer.status(), 413);

    let parts = [Ok(Frame::data(Bytes::from_static(b"{}"))), Err("reset")];
    let broken = StreamBody::new(futures_util::stream::iter(parts));
    assert_eq!(send(Method::POST, PATH, broken).await.status(), 400);
}
