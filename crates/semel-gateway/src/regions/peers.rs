//! The connections to the other regions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use ipnet::IpNet;
use semel_core::identity::IdentityHash;
use semel_http::Relay;

use super::{ANSWERED_BY, CONFIRM_PATH, Regions};
use crate::client_tls;
use crate::run::Error;
use crate::upstream::{Body, ConfigError, Upstream, UpstreamConfig};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A region that takes longer to accept a connection counts as unreachable; two retransmissions of a
/// lost packet fit.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long another region may take to say which list it uses.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(2);

/// A client for each other region. Make one per worker, as of [`Upstream`].
#[derive(Clone, Debug)]
pub struct Peers {
    regions: Arc<Regions>,
    clients: Arc<BTreeMap<Arc<str>, Upstream>>,
}

/// Extensions of a request that is sent to another region.
#[derive(Clone, Debug)]
pub(crate) struct RegionRequest {
    regions: Arc<Regions>,
    home: Arc<str>,
    identity: Option<IdentityHash>,
}

impl RegionRequest {
    /// Adds its headers.
    pub(crate) fn sign(&self, headers: &mut http::HeaderMap) {
        self.regions.sign(headers, &self.home, self.identity);
    }
}

impl Peers {
    /// Clients for all regions but this one. The headers of `trusted_proxies` are sent on, as to the
    /// application.
    ///
    /// # Errors
    /// An address cannot be used, or there are no root certificates for one with TLS.
    pub fn new(regions: &Arc<Regions>, trusted_proxies: &[IpNet]) -> Result<Self, Error> {
        let mut tls = None;
        let mut clients = BTreeMap::new();
        for name in regions.others() {
            let Some(address) = regions.table.regions.get(name) else {
                continue;
            };
            let invalid = |source| Error::Region {
                name: name.to_string(),
                source,
            };
            let base = address.to_string().parse();
            let mut config = UpstreamConfig::new(base.map_err(|_| invalid(ConfigError::Host))?);
            config.trusted_proxies = trusted_proxies.to_vec();
            config.connect_timeout = CONNECT_TIMEOUT.min(regions.timeout);
            if address.is_secure() {
                if tls.is_none() {
                    let roots = client_tls::with_native_roots().map_err(Error::RootCertificates)?;
                    tls = Some(Arc::new(roots));
                }
                config.tls.clone_from(&tls);
            }
            clients.insert(Arc::clone(name), Upstream::new(&config).map_err(invalid)?);
        }
        Ok(Self {
            regions: Arc::clone(regions),
            clients: Arc::new(clients),
        })
    }

    /// The same with separate connections.
    pub(crate) fn with_own_pool(&self) -> Self {
        let clients = self.clients.iter();
        let own = clients.map(|(name, client)| (Arc::clone(name), client.with_own_pool()));
        Self {
            regions: Arc::clone(&self.regions),
            clients: Arc::new(own.collect()),
        }
    }

    pub(crate) fn regions(&self) -> &Arc<Regions> {
        &self.regions
    }

    /// Sends a request to another region, once. Only what that region took for a request from here
    /// counts as a response.
    pub(crate) async fn send<B>(
        &self,
        relay: &Relay,
        mut request: Request<B>,
    ) -> Result<Response<Body>, BoxError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let client = self.clients.get(&relay.home);
        let client = client.ok_or("the region is not in the list")?;
        request.extensions_mut().insert(RegionRequest {
            regions: Arc::clone(&self.regions),
            home: Arc::clone(&relay.home),
            identity: relay.identity,
        });
        let mut response = client.send(request).await.map_err(|error| error.source)?;
        match response.headers_mut().remove(ANSWERED_BY) {
            Some(name) if name == *relay.home => Ok(response),
            Some(_) | None => Err(format!(
                "what answers at its address ({}) is not the region {:?}, or refuses the token or \
                 the list",
                response.status(),
                relay.home
            )
            .into()),
        }
    }

    /// As [`send`](Self::send), within `timeout`, with a response of at most `limit` bytes.
    pub(super) async fn ask(
        &self,
        home: &Arc<str>,
        request: Request<Full<Bytes>>,
        limit: usize,
        timeout: Duration,
    ) -> Result<Response<Bytes>, BoxError> {
        let relay = Relay {
            home: Arc::clone(home),
            identity: None,
        };
        let exchange = async {
            let (head, body) = self.send(&relay, request).await?.into_parts();
            let body = Limited::new(body, limit).collect().await?.to_bytes();
            Ok(Response::from_parts(head, body))
        };
        tokio::time::timeout(timeout, exchange).await?
    }

    /// Whether a region uses the same list.
    ///
    /// # Errors
    /// It does not, or does not answer.
    pub(super) async fn confirm(&self, home: &Arc<str>) -> Result<(), BoxError> {
        let mut request = Request::new(Full::default());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = http::Uri::from_static(CONFIRM_PATH);
        let limit = 1 << 10;
        let answer = self.ask(home, request, limit, CONFIRM_TIMEOUT).await?;
        match answer.status() {
            StatusCode::NO_CONTENT => Ok(()),
            status => Err(format!("it answers {status}").into()),
        }
    }
}
