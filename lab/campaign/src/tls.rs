//! One certificate for every server of the campaign, and the two kinds of clients that trust it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The protocols as TLS names them.
const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// The certificate with its key, as files for servers and as configurations for our own side.
#[derive(Clone, Debug)]
pub(crate) struct Tls {
    /// Also what clients trust: it signs itself.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    server: Arc<ServerConfig>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Tls {
    /// Creates a certificate for servers on this machine; its files go into `place`.
    pub(crate) fn create(place: &Path) -> Result<Self> {
        let names = ["localhost".to_owned(), Ipv4Addr::LOCALHOST.to_string()];
        let certified = rcgen::generate_simple_self_signed(names)?;
        let (certificate, key) = (place.join("certificate.pem"), place.join("key.pem"));
        fs::write(&certificate, certified.cert.pem())?;
        fs::write(&key, certified.signing_key.serialize_pem())?;
        let der = CertificateDer::from(certified.cert);
        let private = PrivateKeyDer::try_from(certified.signing_key.serialize_der());
        let private = private.map_err(anyhow::Error::msg)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![der.clone()], private)?;
        server.alpn_protocols = vec![HTTP1.to_vec()];
        let mut roots = RootCertStore::empty();
        roots.add(der)?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        client.alpn_protocols = vec![HTTP1.to_vec()];
        let mut http2 = client.clone();
        http2.alpn_protocols = vec![HTTP2.to_vec()];
        Ok(Self {
            certificate,
            key,
            server: Arc::new(server),
            http1: Arc::new(client),
            http2: Arc::new(http2),
        })
    }

    /// The `[tls]` table of a gateway's configuration.
    pub(crate) fn table(&self) -> String {
        let (certificate, key) = (self.certificate.display(), self.key.display());
        format!("\n[tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\n")
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.server))
    }

    /// A connection over TLS. The server must choose HTTP/2 where it is asked for.
    pub(crate) async fn connect(
        &self,
        to: SocketAddr,
        is_http2: bool,
    ) -> Result<TlsStream<TcpStream>> {
        let config = if is_http2 { &self.http2 } else { &self.http1 };
        let stream = TcpStream::connect(to).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::from(to.ip());
        let stream = TlsConnector::from(Arc::clone(config))
            .connect(name, stream)
            .await?;
        let chosen = stream.get_ref().1.alpn_protocol();
        let chosen = chosen.context("the server chose no protocol")?;
        anyhow::ensure!(
            (chosen == HTTP2) == is_http2,
            "the server chose another protocol"
        );
        Ok(stream)
    }
}
