//! The URL of a store, and the hosts in it.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::error::Error;
use crate::server::Durability;

/// When TCP probes an idle connection, and how long it waits for an acknowledgement.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// A URL without the parameters that the driver does not know.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Location {
    pub(crate) url: String,
    pub(crate) root: Option<PathBuf>,
    pub(crate) durability: Durability,
}

/// Takes `sslrootcert` and `durability` out of a URL. `verify-ca` and `verify-full` mean the same as
/// `require` here, which always verifies the certificate and the host name.
/// `target_session_attrs` is left out: the store always needs a server that it may write to.
pub(crate) fn locate(url: &str) -> Result<Location, Error> {
    let mut location = Location {
        url: url.to_owned(),
        root: None,
        durability: Durability::default(),
    };
    let Some((base, query)) = url.split_once('?') else {
        return Ok(location);
    };
    let mut kept = Vec::new();
    for pair in query.split('&') {
        match pair.split_once('=') {
            Some(("sslrootcert", file)) => location.root = Some(PathBuf::from(file)),
            Some(("durability", word)) => {
                let parsed = word.parse().map_err(|error: String| error.into());
                location.durability = parsed.map_err(Error::Address)?;
            }
            Some(("sslmode", "verify-ca" | "verify-full")) => kept.push("sslmode=require"),
            Some(("target_session_attrs", "any" | "read-write" | "primary")) => {}
            Some(("target_session_attrs", _)) => {
                let reason = "the store writes: `target_session_attrs` is `read-write`";
                return Err(Error::Address(reason.into()));
            }
            _ => kept.push(pair),
        }
    }
    location.url = format!("{base}?{}", kept.join("&"));
    Ok(location)
}

/// One configuration for each host, with the bounds of this store.
pub(crate) fn each_host(config: &Config) -> Vec<Config> {
    let (names, addresses, ports) = (
        config.get_hosts(),
        config.get_hostaddrs(),
        config.get_ports(),
    );
    let mut common = Config::new();
    common
        .ssl_mode(config.get_ssl_mode())
        .ssl_negotiation(config.get_ssl_negotiation())
        .channel_binding(config.get_channel_binding())
        .tcp_user_timeout(KEEPALIVE)
        .keepalives_idle(KEEPALIVE)
        .application_name(config.get_application_name().unwrap_or("semel"));
    if let Some(user) = config.get_user() {
        common.user(user);
    }
    if let Some(password) = config.get_password() {
        common.password(password);
    }
    if let Some(database) = config.get_dbname() {
        common.dbname(database);
    }
    if let Some(options) = config.get_options() {
        common.options(options);
    }
    (0..names.len().max(addresses.len()))
        .map(|nth| {
            let mut host = common.clone();
            match names.get(nth) {
                Some(Host::Tcp(name)) => {
                    host.host(name);
                }
                Some(Host::Unix(path)) => {
                    host.host_path(path);
                }
                None => {}
            }
            if let Some(address) = addresses.get(nth) {
                host.hostaddr(*address);
            }
            if let Some(port) = ports.get(nth).or(ports.first()) {
                host.port(*port);
            }
            host
        })
        .collect()
}

/// Hosts and database, without the password.
pub(crate) fn address(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |nth: usize| ports.get(nth).or(ports.first()).copied().unwrap_or(5432);
    let names = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let names: Vec<String> = match config.get_hostaddrs() {
        [] => names.collect(),
        addresses => addresses.iter().map(IpAddr::to_string).collect(),
    };
    let hosts: Vec<String> = names
        .iter()
        .enumerate()
        .map(|(nth, name)| format!("{name}:{}", port(nth)))
        .collect();
    let database = config.get_dbname().or(config.get_user()).unwrap_or("?");
    format!("{}/{database}", hosts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<Config, Error> {
        let url = locate(url)?.url;
        url.parse()
            .map_err(|error: tokio_postgres::Error| Error::Address(error.to_string().into()))
    }

    #[test]
    fn parameters_unknown_to_the_driver_are_removed() {
        let found = locate(
            "postgres://u@h/d?sslmode=verify-full&sslrootcert=/etc/ca.pem&durability=replicated&target_session_attrs=read-write&x=1",
        )
        .unwrap();
        assert_eq!(found.url, "postgres://u@h/d?sslmode=require&x=1");
        assert_eq!(found.root, Some(PathBuf::from("/etc/ca.pem")));
        assert_eq!(found.durability, Durability::Replicated);
        assert_eq!(locate("postgres://u@h/d").unwrap().url, "postgres://u@h/d");
    }

    #[test]
    fn the_address_in_messages_has_no_password() {
        let found = parsed("postgres://alice:secret@db1:5433,db2/shop").unwrap();
        assert_eq!(address(&found), "db1:5433,db2:5432/shop");
    }

    #[test]
    fn invalid_addresses_are_refused() {
        for url in [
            "postgres://h:port/d",
            "postgres://h/d?nonsense=1",
            "postgres://h/d?durability=both",
            "postgres://h/d?target_session_attrs=read-only",
        ] {
            let error = parsed(url).err().unwrap();
            assert!(matches!(error, Error::Address(_)), "{url}: {error}");
        }
    }

    #[test]
    fn an_address_without_a_host_has_none_to_connect_to() {
        assert!(each_host(&parsed("postgres:///shop").unwrap()).is_empty());
    }

    #[test]
    fn each_host_has_its_own_port_and_the_settings_of_all() {
        let found = each_host(&parsed("postgres://u:p@a:1,b:2/d?options=-c%20jit%3Doff").unwrap());
        let hosts: Vec<_> = found.iter().map(address).collect();
        assert_eq!(hosts, ["a:1/d", "b:2/d"]);
        for host in &found {
            assert_eq!(host.get_user(), Some("u"));
            assert_eq!(host.get_password(), Some(&b"p"[..]));
            assert_eq!(host.get_options(), Some("-c jit=off"));
        }
    }
}
