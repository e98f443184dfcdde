//! A proxy under test, a scripted upstream, and raw sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use semel_core::Store;
use semel_gateway::CurrentLayer;
use semel_gateway::server::{self, Drained, Limits, Tls};
use std::time::Duration;

use semel_gateway::upstream::{Forward, Upstream, UpstreamConfig};
use semel_http::Layer;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// A layer without routes, for an admin listener over `store`.
pub fn unrouted<S: Store>(store: S) -> CurrentLayer<S> {
    let layer = Layer::new(store).tenant(|_| None::<&str>);
    Arc::new(ArcSwap::from_pointee(layer))
}

pub struct Proxy {
    pub address: SocketAddr,
    pub shutdown: CancellationToken,
    pub served: JoinHandle<Drained>,
}

pub fn upstream_at(address: SocketAddr) -> Upstream {
    let base = format!("http://{address}").parse().unwrap();
    Upstream::new(&UpstreamConfig::new(base)).unwrap()
}

pub async fn proxy(upstream: SocketAddr, limits: Limits, tls: Option<Tls>) -> Proxy {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let service = Forward::new(upstream_at(upstream), Duration::from_mins(1));
    let served = tokio::spawn(server::serve(
        listener,
        service,
        limits,
        tls,
        shutdown.clone(),
    ));
    Proxy {
        address,
        shutdown,
        served,
    }
}

pub async fn proxy_to(upstream: SocketAddr) -> Proxy {
    proxy(upstream, Limits::default(), None).await
}

/// A proxy with a certificate for `localhost`, and a client that trusts it.
pub async fn tls_proxy(upstream: SocketAddr, alpn: &[u8]) -> (Proxy, TlsConnector) {
    let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = certified.signing_key.serialize_pem();
    let tls = Tls::from_pem(certified.cert.pem().as_bytes(), key.as_bytes()).unwrap();
    let config = client_config(certified.cert.der().clone(), alpn);
    let proxy = proxy(upstream, Limits::default(), Some(tls)).await;
    (proxy, TlsConnector::from(config))
}

/// A client that trusts one certificate and offers one protocol.
fn client_config(
    certificate: rustls_pki_types::CertificateDer<'static>,
    alpn: &[u8],
) -> Arc<rustls::ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// An upstream that answers every request with the same response and counts requests.
pub struct Fixed {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
}

impl Fixed {
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Reads requests (heads, and bodies of known length) and answers each with `answer`.
pub async fn fixed(answer: &'static str) -> Fixed {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let requests = Arc::new(AtomicUsize::new(0));
    let (c, r) = (connections.clone(), requests.clone());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            c.fetch_add(1, Ordering::SeqCst);
            let r = r.clone();
            tokio::spawn(async move {
                while read_request(&mut stream).await.is_some() {
                    r.fetch_add(1, Ordering::SeqCst);
                    if stream.write_all(answer.as_bytes()).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    Fixed {
        address,
        connections,
        requests,
    }
}

pub const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// One head, and the body if its length is given or it is chunked. `None` at the end.
pub async fn read_request(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let text = String::from_utf8(bytes[..head].to_vec())
        .unwrap()
        .to_ascii_lowercase();
    let length = text
        .split("\r\n")
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |n| n.parse().unwrap());
    while bytes.len() < head + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    if text.contains("transfer-encoding: chunked") {
        while !bytes[head..].ends_with(b"0\r\n\r\n") {
            if stream.read_buf(&mut bytes).await.ok()? == 0 {
                return None;
            }
        }
    }
    Some(String::from_utf8(bytes).unwrap())
}

pub async fn connect(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

/// Sends bytes and reads until the other side closes.
pub async fn ask(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = connect(address).await;
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

/// Reads until `end` has been seen.
pub async fn until(stream: &mut TcpStream, end: &str) -> String {
    let mut bytes = Vec::new();
    while !String::from_utf8_lossy(&bytes).contains(end) {
        let n = stream.read_buf(&mut bytes).await.unwrap();
        assert!(
            n > 0,
            "closed before {end:?}: {:?}",
            String::from_utf8_lossy(&bytes)
        );
    }
    String::from_utf8(bytes).unwrap()
}
