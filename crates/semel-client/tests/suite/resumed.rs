//! What is finished without the caller's request, and responses that are too long to be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::HeaderValue;
use semel_client::{
    BoxFuture, Client, Error, GaveUp, Journal, Options, QuotaOptions, Received, Request, Transport,
    TransportError,
};
use tokio::sync::Semaphore;

use crate::world::{Clock, Scripted, payment, response};

fn client(journal: &Journal, transport: impl Transport + 'static) -> Client {
    Client::builder(journal.clone())
        .options(Options {
            quota: QuotaOptions {
                capacity: 0.0,
                cost: 1.0,
                refill_per_second: 0.0,
            },
            ..Options::default()
        })
        .environment(Arc::new(Clock::default()))
        .build_with(transport)
}

#[tokio::test]
async fn resume_finishes_eight_intents_at_a_time_and_reports_them_in_order() {
    let journal = Journal::memory();
    let fails = client(&journal, Scripted::new([response(503, "")]));
    let names: Vec<String> = (0..10).map(|nth| format!("invoice-{nth}")).collect();
    for name in &names {
        fails.call(name, payment()).await.unwrap_err();
    }
    let gate = Arc::new(Semaphore::new(0));
    let mut transport = Scripted::new([response(201, "done")]);
    transport.gate = Some(Arc::clone(&gate));
    let works = client(&journal, transport.clone());
    let resuming = tokio::spawn(async move { works.resume().await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(transport.keys().len(), 8);
    gate.add_permits(10);
    let reports = resuming.await.unwrap().unwrap();
    let reported: Vec<&String> = reports.iter().map(|(intent, _)| intent).collect();
    assert_eq!(reported, names.iter().collect::<Vec<_>>());
    assert!(reports.iter().all(|(_, result)| result.is_ok()));
}

#[tokio::test]
async fn a_fingerprint_of_another_version_is_not_computed_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal.db");
    let fails = Scripted::new([response(503, "")]);
    let journal = Journal::sqlite(&path).unwrap();
    client(&journal, fails.clone())
        .call("invoice-1", payment())
        .await
        .unwrap_err();
    rusqlite::Connection::open(&path)
        .unwrap()
        .execute(
            "UPDATE intents SET fingerprint = zeroblob(32), url = 'http://api.example'",
            [],
        )
        .unwrap();
    let works = Scripted::new([response(201, "done")]);
    let finished = client(&journal, works.clone()).finish("invoice-1").await;
    assert_eq!(finished.unwrap().unwrap().body, "done");
    assert_eq!(works.keys(), fails.keys());
}

#[tokio::test]
async fn a_header_that_only_another_client_knew_as_a_credential_is_missed() {
    let journal = Journal::memory();
    let with = |value| {
        Client::builder(journal.clone())
            .options(Options {
                quota: QuotaOptions {
                    capacity: 0.0,
                    cost: 1.0,
                    refill_per_second: 0.0,
                },
                ..Options::default()
            })
            .header(
                "x-tenant-key".parse().unwrap(),
                HeaderValue::from_static(value),
            )
            .environment(Arc::new(Clock::default()))
    };
    let request = payment().header(
        "x-tenant-key".parse().unwrap(),
        HeaderValue::from_static("theirs"),
    );
    let fails = with("ours").build_with(Scripted::new([response(503, "")]));
    fails.call("invoice-1", request).await.unwrap_err();
    let works = Scripted::new([response(201, "done")]);
    let refused = client(&journal, works.clone()).finish("invoice-1").await;
    assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
    assert_eq!(works.keys().len(), 0);
    let finished = with("ours").build_with(works).finish("invoice-1").await;
    assert_eq!(finished.unwrap().unwrap().body, "done");
}

#[tokio::test]
async fn credentials_go_only_to_the_origins_of_their_client() {
    let journal = Journal::memory();
    let fails = client(&journal, Scripted::new([response(503, "")]));
    let at = |host: &str| Request::post(&format!("https://{host}/payments")).unwrap();
    for host in ["a.example", "b.example"] {
        fails.call(host, at(host)).await.unwrap_err();
    }
    let works = Scripted::new([response(201, "done")]);
    let builder = Client::builder(journal.clone())
        .environment(Arc::new(Clock::default()))
        .header(
            http::header::AUTHORIZATION,
            HeaderValue::from_static("Bearer a"),
        );
    let unclear = builder.build_with(works.clone());
    for (_, refused) in unclear.resume().await.unwrap() {
        assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
    }
    assert_eq!(works.keys().len(), 0);
    let of_a = Client::builder(journal.clone())
        .environment(Arc::new(Clock::default()))
        .origin("https://a.example".parse().unwrap())
        .build_with(works.clone());
    let refused = of_a.finish("b.example").await;
    assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
    let resumed = of_a.resume().await.unwrap();
    assert_eq!(resumed.len(), 1);
    assert_eq!(resumed[0].0, "a.example");
    assert_eq!(works.keys().len(), 1);
    assert_eq!(journal.list().await.unwrap()[0].intent, "b.example");
}

#[tokio::test]
async fn a_url_with_credentials_is_refused_before_it_is_stored() {
    let journal = Journal::memory();
    let mut request = payment();
    request.url.set_password(Some("secret")).unwrap();
    let refused = client(&journal, Scripted::default())
        .call("invoice-1", request)
        .await;
    assert!(matches!(refused, Err(Error::Request(_))), "{refused:?}");
    assert_eq!(journal.list().await.unwrap(), []);
}

/// Responses that are too long to be read, with these statuses.
struct TooLong(&'static [u16], AtomicUsize);

impl Transport for TooLong {
    fn send(&self, _: http::Request<Bytes>) -> BoxFuture<'_, Result<Received, TransportError>> {
        let nth = self.1.fetch_add(1, Ordering::SeqCst);
        let head = response(self.0[nth], "").map(drop);
        Box::pin(async move { Err(TransportError::TooLong(head)) })
    }
}

#[tokio::test]
async fn a_response_that_is_too_long_ends_an_intent_only_if_it_is_final() {
    let journal = Journal::memory();
    let fails = client(&journal, TooLong(&[503], AtomicUsize::new(0)));
    let ended = fails.call("invoice-1", payment()).await;
    assert!(
        matches!(
            ended,
            Err(Error::GaveUp {
                reason: GaveUp::Quota,
                ..
            })
        ),
        "{ended:?}"
    );
    assert_eq!(journal.list().await.unwrap().len(), 1);
    let works = client(&journal, TooLong(&[201], AtomicUsize::new(0)));
    for _ in 0..2 {
        let ended = works.call("invoice-1", payment()).await;
        let Err(error @ Error::ResponseNotStored(response)) = &ended else {
            panic!("{ended:?}");
        };
        assert_eq!(response.status, 201);
        assert!(error.to_string().contains("it was executed"), "{error}");
    }
    assert_eq!(journal.list().await.unwrap(), []);
}
