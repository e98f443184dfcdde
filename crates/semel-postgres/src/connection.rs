//! Connections: where to, how secured, and what each begins with.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Failure};
use crate::queries::{Queries, Statements};
use crate::tls::{self, Trust};

/// How long a connection may take to come about, with everything it begins with.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);

/// How long the server lets one statement run. Every one of ours takes milliseconds; one that
/// does not stands behind a lock or a disk, and its caller is better told so.
const STATEMENT_TIMEOUT: &str = "5s";

/// How long a statement waits for a row that somebody holds: only an application's own
/// transaction holds one for long, and others share the statement.
const LOCK_TIMEOUT: &str = "250ms";

/// When a silent peer is asked whether it is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// What a statement of the store says to a server it has not met before.
const SESSION: &str = include_str!("../queries/session.sql");

/// How to get a connection.
pub(crate) struct Connector {
    config: Config,
    tls: MakeRustlsConnect,
    queries: Queries,
    /// Host and database, for people.
    pub(crate) address: Box<str>,
}

/// A connection with everything prepared.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) sql: Statements,
}

/// What drives a connection, and hears what the server says unasked.
pub(crate) type Driver =
    Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>;

impl Connector {
    pub(crate) fn new(url: &str, queries: Queries) -> Result<Self, Error> {
        let Location { url, root } = locate(url);
        let mut config: Config = url
            .parse()
            .map_err(|error| Error::Address(crate::error::chain(&error).into()))?;
        if config.get_hosts().is_empty() {
            return Err(Error::Address("it names no host".into()));
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
            // Nobody asked for more than what hides from those who only listen.
            (_, None) => Trust::Anyone,
        };
        Ok(Self {
            address: address(&config).into(),
            tls: MakeRustlsConnect::new(tls::client(&trust)?),
            config,
            queries,
        })
    }

    /// A bare connection, and what drives it.
    pub(crate) async fn connect(&self) -> Result<(Client, Driver), tokio_postgres::Error> {
        self.config.connect(self.tls.clone()).await
    }

    /// A connection that is driven by a task of its own, with nothing prepared.
    pub(crate) async fn client(&self) -> Result<Client, tokio_postgres::Error> {
        let (client, driver) = self.connect().await?;
        tokio::spawn(async move {
            // The error reaches whoever waits for an answer.
            let _ = driver.await;
        });
        Ok(client)
    }

    /// A connection with everything prepared.
    pub(crate) async fn session(&self) -> Result<Session, Failure> {
        let connecting = async {
            let client = self.client().await?;
            self.begin(client).await
        };
        let connected = tokio::time::timeout(CONNECT_WITHIN, connecting).await;
        connected.unwrap_or(Err(Failure::Broken(None)))
    }

    /// Makes a connection one of the store's.
    pub(crate) async fn begin(&self, client: Client) -> Result<Session, Failure> {
        client
            .query_one(SESSION, &[&STATEMENT_TIMEOUT, &LOCK_TIMEOUT])
            .await?;
        // Boxed: two dozen statements that are prepared at once take some room.
        let sql = Box::pin(Statements::prepare(&client, &self.queries)).await?;
        Ok(Session { client, sql })
    }
}

/// A URL without what the driver does not know.
#[derive(Debug, PartialEq, Eq)]
struct Location {
    url: String,
    root: Option<PathBuf>,
}

/// Takes `sslrootcert` out of a URL. `verify-ca` and `verify-full` are what we do whenever TLS is
/// required: a certificate that is not checked protects from nobody who matters.
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

/// Shared, so that a lane can be given away.
pub(crate) type Shared = Arc<Connector>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_does_not_know_is_taken_out() {
        let found = locate("postgres://u@h/d?sslmode=verify-full&sslrootcert=/etc/ca.pem&x=1");
        assert_eq!(found.url, "postgres://u@h/d?sslmode=require&x=1");
        assert_eq!(found.root, Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!(locate("postgres://u@h/d").url, "postgres://u@h/d");
    }

    #[test]
    fn an_address_shows_no_password() {
        let url = "postgres://alice:secret@db1:5433,db2/shop";
        let connector = Connector::new(url, Queries::default()).unwrap();
        assert_eq!(&*connector.address, "db1:5433,db2:5432/shop");
    }

    #[test]
    fn nonsense_is_refused_in_words() {
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
