//! TLS connections, verified with the operating system's root certificates.

use std::io;
use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::{Address, Stream};

pub(crate) async fn connect(stream: TcpStream, to: &Address) -> io::Result<Box<dyn Stream>> {
    let mut roots = RootCertStore::empty();
    // Skips root certificates that cannot be parsed.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    // Explicit, since the binary may link a second provider.
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(to.host.clone()).map_err(io::Error::other)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await?;
    Ok(Box::new(stream))
}
