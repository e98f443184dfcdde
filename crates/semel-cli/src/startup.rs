//! Start-up errors of the gateway and the worker, with the flag or key that helps.

use std::net::SocketAddr;

use anyhow::anyhow;
use semel_gateway::Error;
use semel_gateway::config::Config;

/// The settings that a start-up error can refer to.
pub(crate) struct Settings {
    listen: SocketAddr,
    store: String,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            listen: config.listen.address(),
            store: config.store.to_string(),
        }
    }

    /// Adds what the operator can change. The error itself says what happened.
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the other errors name their own way out"
    )]
    pub(crate) fn explain(&self, error: Error) -> anyhow::Error {
        match error {
            Error::Listen { ref address, .. } => {
                let (flag, key) = if *address == self.listen.to_string() {
                    ("--listen", "`listen`")
                } else {
                    ("--admin-listen", "`listen` in [admin]")
                };
                anyhow!(
                    "{error}\nChoose another address with {flag} or {key} in the configuration; \
                     port 0 takes any free port."
                )
            }
            Error::Sqlite(_) | Error::Postgres(_) => anyhow!(
                "{}\nThe store is {}; choose another one with --store or `store` in the \
                 configuration.",
                crate::message(&error.into()),
                self.store,
            ),
            other => other.into(),
        }
    }
}
