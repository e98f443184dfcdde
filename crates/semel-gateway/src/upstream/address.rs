//! The host, port and TLS name of the upstream, and how to connect to it.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::uri::Authority;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::ConfigError;
use super::stream::{Counted, Stream};

/// The default ports of `http://` and `https://`.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Where the upstream listens.
#[derive(Clone, Debug)]
pub(super) struct UpstreamAddress {
    host: Host,
    tls: Option<Tls>,
}

#[derive(Clone, Debug)]
enum Host {
    /// An IP address: needs no lookup, which would occupy a blocking thread.
    Address(SocketAddr),
    Name(Arc<str>, u16),
}

#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.name).finish()
    }
}

impl UpstreamAddress {
    pub(super) fn new(
        authority: &Authority,
        secure: bool,
        tls: Option<&Arc<ClientConfig>>,
    ) -> Result<Self, ConfigError> {
        let default = if secure { HTTPS_PORT } else { HTTP_PORT };
        let port = authority.port_u16().unwrap_or(default);
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']');
        let tls = match (secure, tls) {
            (false, _) => None,
            (true, None) => return Err(ConfigError::NoRootCertificates),
            (true, Some(config)) => Some(Tls {
                connector: TlsConnector::from(Arc::clone(config)),
                name: ServerName::try_from(host.to_owned()).map_err(|_| ConfigError::Host)?,
            }),
        };
        let host = match host.parse::<IpAddr>() {
            Ok(ip) => Host::Address(SocketAddr::new(ip, port)),
            Err(_) => Host::Name(host.into(), port),
        };
        Ok(Self { host, tls })
    }

    pub(super) async fn connect(&self) -> io::Result<Stream> {
        let stream = match &self.host {
            Host::Address(address) => TcpStream::connect(address).await?,
            Host::Name(host, port) => TcpStream::connect((&**host, *port)).await?,
        };
        stream.set_nodelay(true)?;
        let stream = Counted::new(stream);
        Ok(match &self.tls {
            None => Stream::Plain(stream),
            Some(Tls { connector, name }) => {
                let stream = connector.connect(name.clone(), stream).await?;
                Stream::Tls(Box::new(stream))
            }
        })
    }
}
