//! Connections: address, TLS, and session settings.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Failure};
use crate::queries::{Queries, Statements};
use crate::tls::{self, Trust};

/// How long connecting may take, with settings and prepared statements.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long the server lets one statement run. The store's statements take milliseconds; one that
/// takes longer waits for a lock or a disk, and its caller should get an error.
const STATEMENT_TIMEOUT: &str = "5s";

/// How long a statement waits for a row lock: only an application's transaction holds one for long,
/// and other calls share the statement.
const LOCK_TIMEOUT: &str = "250ms";

/// When TCP probes an idle connection.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// The settings of every connection.
const SESSION: &str = include_str!("../queries/session.sql");

/// Opens connections.
pub(crate) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
    queries: Queries,
    /// Host and database, for messages.
    pub(crate) address: Box<str>,
}

/// A connection with all statements prepared.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) sql: Statements,
}

/// Drives a connection, and receives the server's notifications.
pub(crate) type Driver =
    Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>;

impl Connector {
    pub(crate) fn new(url: &str, queries: Queries) -> Result<Self, Error> {
        let Location { url, root } = locate(url);
        let mut config: Config = url
            .parse()
            .map_err(|error| Error::Address(crate::error::chain(&error).into()))?;
        if config.get_hosts().is_empty() {
            return Err(Error::Address(
                "it has no host; write postgres://user@host/database".into(),
            ));
        }
        config
            .connect_timeout(CONNECT_WITHIN)
            .tcp_user_timeout(KEEPALIVE)
            .keepalives_idle(KEEPALIVE);
        if config.get_application_name().is_none() {
            config.application_name("semel");
        }
        let trust = match (config.get_ssl_mode(), root) {
            (_, Some(file)) => Trust::File(file),
            (SslMode::Require, None) => Trust::System,
            // `prefer` or `disable`: nothing to verify against.
            (_, None) => Trust::AnyCertificate,
        };
        Ok(Self {
            address: address(&config).into(),
            tls: MakeRustlsConnect::new(tls::client(&trust)?),
            config,
            queries,
        })
    }

    /// A bare connection and its driver.
    pub(crate) async fn connect(&self) -> Result<(Client, Driver), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    /// A connection that a spawned task drives, without prepared statements.
    pub(crate) async fn client(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, driver) = self.connect().await?;
        tokio::spawn(async move {
            // The callers that wait for an answer get the error.
            let _ = driver.await;
        });
        Ok(client)
    }

    /// A connection with all statements prepared.
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        let connecting = async {
            let client = self.client().await?;
            self.begin(client).await
        };
        let connected = tokio::time::timeout(CONNECT_WITHIN, connecting).await;
        connected.unwrap_or(Err(Failure::Broken(None)))
    }

    /// Sets up a connection and prepares the statements.
    pub(crate) async fn begin(&self, client: Client) -> Result<Session, Failure> {
        client
            .query_one(SESSION, &[&STATEMENT_TIMEOUT, &LOCK_TIMEOUT])
            .await?;
        // Boxed: the future that prepares all statements at once is large.
        let sql = Box::pin(Statements::prepare(&client, &self.queries)).await?;
        Ok(Session { client, sql })
    }
}

/// A URL without the parameters that the driver does not know.
#[derive(Debug, PartialEq, Eq)]
struct Location {
    url: String,
    root: Option<PathBuf>,
}

/// Takes `sslrootcert` out of a URL. `verify-ca` and `verify-full` mean the same as `require` here,
/// which always verifies the certificate and the host name.
fn locate(url: &str) -> Location {
    let Some((base, query)) = url.split_once('?') else {
        return Location {
            url: url.to_owned(),
            root: None,
        };
    };
    let mut root = None;
    let mut kept = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslrootcert", file)) => root = Some(PathBuf::from(file)),
            Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
            _ => kept.push(pair),
        }
    }
    Location {
        url: format!("{base}?{}", kept.join("&")),
        root,
    }
}

fn address(config: &Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .enumerate()
        .map(|(at, host)| {
            let ports = config.get_ports();
            let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
            match host {
                Host::Tcp(name) => format!("{name}:{port}"),
                Host::Unix(path) => format!("{} (port {port})", path.display()),
            }
        })
        .collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or("?");
    format!("{}/{database}", hosts.join(","))
}

/// Shared by the connection workers.
pub(crate) type Shared = Arc<Connector>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_unknown_to_the_driver_are_removed() {
        let found = locate("postgres://u@h/d?sslmode=verify-full&sslrootcert=/etc/ca.pem&x=1");
        assert_eq!(found.url, "postgres://u@h/d?sslmode=require&x=1");
        assert_eq!(found.root, Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!(locate("postgres://u@h/d").url, "postgres://u@h/d");
    }

    #[test]
    fn the_address_in_messages_has_no_password() {
        let url = "postgres://alice:secret@db1:5433,db2/shop";
        let connector = Connector::new(url, Queries::default()).unwrap();
        assert_eq!(&*connector.address, "db1:5433,db2:5432/shop");
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for url in [
            "postgres://",
            "postgres://h:port/d",
            "postgres://h/d?nonsense=1",
        ] {
            let error = Connector::new(url, Queries::default()).err().unwrap();
            assert!(matches!(error, Error::Address(_)), "{url}: {error}");
        }
    }
}
