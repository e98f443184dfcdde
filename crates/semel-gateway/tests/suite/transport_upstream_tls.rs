//! The upstream client over TLS: the same guarantees, although TLS sends records of its own.

use std::sync::Arc;

use crate::support::{OK, read_request};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use semel_gateway::upstream::{Stage, Upstream, UpstreamConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// An application with a certificate, and an upstream client that trusts it.
struct Secure {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    upstream: Upstream,
}

impl Secure {
    async fn named(name: &str) -> Self {
        let certified = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let certificate = CertificateDer::from(certified.cert);
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let base = format!("https://localhost:{port}").parse().unwrap();
        let mut config = UpstreamConfig::new(base);
        config.tls = Some(Arc::new(client));
        Self {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(server)),
            upstream: Upstream::new(&config).unwrap(),
        }
    }

    async fn accept(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let (stream, _) = self.listener.accept().await.unwrap();
        self.acceptor.accept(stream).await
    }

    async fn send(&self) -> Result<Bytes, Stage> {
        let request = Request::post("/")
            .header("host", "a")
            .body(Full::from("body"))
            .unwrap();
        let answer = self.upstream.send(request).await;
        let body = answer.map_err(|error| error.stage)?.into_body();
        let whole = body.collect().await.map_err(|error| error.stage)?;
        Ok(whole.to_bytes())
    }
}

/// Session tickets after the handshake must not be mistaken for a closing connection.
#[tokio::test]
async fn a_connection_is_used_again() {
    let app = Secure::named("localhost").await;
    let serving = async {
        let mut stream = app.accept().await.unwrap();
        for _ in 0..20 {
            read_request(&mut stream).await.unwrap();
            stream.write_all(OK.as_bytes()).await.unwrap();
        }
    };
    let asking = async {
        for _ in 0..20 {
            assert_eq!(app.send().await.unwrap(), "ok");
        }
    };
    tokio::join!(serving, asking);
}

#[tokio::test]
async fn an_untrusted_server_is_sent_nothing() {
    let app = Secure::named("elsewhere.example").await;
    let (answer, met) = tokio::join!(app.send(), app.accept());
    assert_eq!(answer, Err(Stage::NothingSent));
    assert!(met.is_err(), "the handshake came about");
}

#[tokio::test]
async fn from_the_first_byte_on_it_counts_as_sent() {
    let app = Secure::named("localhost").await;
    let serving = async {
        let mut stream = app.accept().await.unwrap();
        read_request(&mut stream).await.unwrap();
    };
    let (answer, ()) = tokio::join!(app.send(), serving);
    assert_eq!(answer, Err(Stage::Sent));
}

#[tokio::test]
async fn a_pooled_connection_closed_by_the_server_is_replaced_without_sending_twice() {
    let app = Secure::named("localhost").await;
    for round in 0..20 {
        let serving = async {
            // A new connection each time: the pooled one is never written to.
            let mut stream = app.accept().await.unwrap();
            let request = read_request(&mut stream).await.unwrap();
            stream.write_all(OK.as_bytes()).await.unwrap();
            (stream, request)
        };
        let (answer, (mut stream, request)) = tokio::join!(app.send(), serving);
        assert_eq!(answer.unwrap(), "ok");
        assert!(request.ends_with("body"), "round {round}: {request}");
        stream.shutdown().await.unwrap();
    }
}

/// A response that ends with its connection is complete only if TLS sends `close_notify`.
#[tokio::test]
async fn a_close_without_close_notify_is_an_error() {
    for (orderly, expected) in [(true, Ok(Bytes::from("part"))), (false, Err(Stage::Sent))] {
        let app = Secure::named("localhost").await;
        let serving = async {
            let mut stream = app.accept().await.unwrap();
            read_request(&mut stream).await.unwrap();
            let answer = b"HTTP/1.1 200 OK\r\n\r\npart";
            stream.write_all(answer).await.unwrap();
            stream.flush().await.unwrap();
            if orderly {
                stream.shutdown().await.unwrap();
            }
        };
        let (answer, ()) = tokio::join!(app.send(), serving);
        assert_eq!(answer, expected, "orderly: {orderly}");
    }
}
