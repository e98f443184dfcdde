//! The processes under test, and their command lines.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::operation::Leg;
use crate::process::{Process, free_address};
use crate::tls::Tls;

/// Less than the gateways wait for the application.
pub(crate) const PROVIDER_TIMEOUT_MS: &str = "2500";
/// The configuration of the gateways with TLS.
pub(crate) const WITH_TLS: &str = "shared-tls.toml";

/// The programs under test.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    pub(crate) semel: PathBuf,
    pub(crate) payments: PathBuf,
}

/// A gateway process with its two addresses.
#[derive(Debug)]
pub(crate) struct GatewayProcess {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    pub(crate) admin: SocketAddr,
    /// Where clients need TLS.
    pub(crate) tls: Option<Tls>,
}

/// Configures processes.
pub(crate) struct Launcher<'p> {
    pub(crate) programs: &'p Programs,
    pub(crate) place: &'p Path,
    pub(crate) tls: &'p Tls,
}

impl Launcher<'_> {
    fn process(&self, name: &str, program: &Path, arguments: &[&str]) -> Process {
        let arguments = arguments.iter().map(ToString::to_string).collect();
        let log = self.place.join(format!("{name}.log"));
        let trusted = self.tls.certificate.clone();
        Process::new(name, program.to_owned(), arguments, log, trusted)
    }

    pub(crate) fn provider(&self, address: SocketAddr, ledger: &Path) -> Process {
        let (address, ledger) = (address.to_string(), ledger.to_string_lossy());
        let arguments = ["provider", "--listen", &address, "--ledger", &ledger];
        self.process("provider", &self.programs.payments, &arguments)
    }

    pub(crate) fn app(
        &self,
        address: SocketAddr,
        provider: SocketAddr,
        database: &Path,
    ) -> Process {
        let (address, provider) = (address.to_string(), format!("http://{provider}"));
        let database = database.to_string_lossy();
        let mut arguments = vec!["app", "--unkeyed", "--listen", &address];
        arguments.extend(["--provider", &provider, "--database", &database]);
        arguments.extend(["--provider-timeout-ms", PROVIDER_TIMEOUT_MS]);
        self.process("app", &self.programs.payments, &arguments)
    }

    pub(crate) fn gateway(
        &self,
        name: &str,
        store: &str,
        upstream: &str,
        worker: bool,
        tls: Option<&Tls>,
    ) -> Result<GatewayProcess> {
        let (address, admin) = (free_address()?, free_address()?);
        let (listen, admin_listen) = (address.to_string(), admin.to_string());
        let config = match tls {
            _ if store.starts_with("sqlite:") => config_file(Leg::Sqlite),
            None => config_file(Leg::Postgres),
            Some(_) => WITH_TLS,
        };
        let config = self.place.join(config);
        let config = config.to_string_lossy();
        let mut arguments = vec!["gateway", "--config", &config, "--listen", &listen];
        arguments.extend(["--admin-listen", &admin_listen, "--upstream", upstream]);
        arguments.extend(["--store", store, "--threads", "1"]);
        if !worker {
            arguments.push("--no-worker");
        }
        Ok(GatewayProcess {
            process: self.process(name, &self.programs.semel, &arguments),
            address,
            admin,
            tls: tls.cloned(),
        })
    }

    pub(crate) fn worker(&self, store: &str, upstream: &str, admin: SocketAddr) -> Process {
        let admin = admin.to_string();
        let config = self.place.join(config_file(Leg::Postgres));
        let config = config.to_string_lossy();
        let mut arguments = vec!["worker", "--config", &config, "--admin-listen", &admin];
        arguments.extend(["--upstream", upstream, "--store", store]);
        self.process("worker", &self.programs.semel, &arguments)
    }
}

/// The configuration of the processes of a store; the gateways with TLS have [their own](WITH_TLS).
pub(crate) fn config_file(leg: Leg) -> &'static str {
    match leg {
        Leg::Postgres => "shared.toml",
        Leg::Sqlite => "alone.toml",
    }
}
