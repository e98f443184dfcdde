//! What the store requires of a server, and what it knows about the one that leads.

use std::str::FromStr;
use std::time::Duration;

use semel_core::Timestamp;
use tokio_postgres::{Config, Row};

use crate::address::address;
use crate::error::NoServer;

/// How durable a write must be before its caller gets the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// As durable as the server is configured: on its own disk, and on its synchronous standbys
    /// where it has any.
    #[default]
    Local,
    /// Also on a synchronous standby. A server without one is refused.
    Replicated,
}

impl Durability {
    /// As in a URL or a configuration file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Replicated => "replicated",
        }
    }
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "local" => Ok(Self::Local),
            "replicated" => Ok(Self::Replicated),
            _ => Err("`durability` is \"local\" or \"replicated\"".to_owned()),
        }
    }
}

/// The server that the store writes to.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// Host, port and database.
    pub address: Box<str>,
    /// The timeline of its log: a promotion begins a new one.
    pub timeline: Box<str>,
    /// Since when this process uses it.
    pub since: Timestamp,
    /// How far the slowest of the standbys that commits wait for is behind; of all standbys where
    /// commits wait for none. Only a member of `pg_monitor` can read it.
    pub standby_lag: Option<Lag>,
}

/// How far a standby is behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lag {
    /// Bytes of the log that it has not stored.
    pub bytes: u64,
    /// The time that it took to store the latest, where the server measured it.
    pub time: Option<Duration>,
}

impl Leader {
    pub(crate) fn new(address: String, timeline: String, since: Timestamp) -> Self {
        Self {
            address: address.into(),
            timeline: timeline.into(),
            since,
            standby_lag: None,
        }
    }

    pub(crate) fn is(&self, address: &str, timeline: &str) -> bool {
        *self.address == *address && *self.timeline == *timeline
    }
}

/// Why a server that answers cannot be used. The greater one says more where several hosts differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("it is a standby or read-only")]
    ReadOnly,
    #[error(
        "it waits for a synchronous standby, and none is connected, so that no commit would end"
    )]
    NoStandby,
    #[error(
        "`durability` is `replicated`, but its `synchronous_standby_names` is empty: a failover could lose acknowledged writes"
    )]
    NotReplicated,
    #[error("it does not keep `synchronous_commit = on`")]
    NotDurable,
    #[error(
        "a pooler in transaction mode is in front of it; Semel needs session mode, or a direct connection"
    )]
    Pooler,
}

/// Why a host was passed over.
pub(crate) enum Rejected {
    Unfit(Unfit),
    Failed(tokio_postgres::Error),
    Silent,
}

impl From<tokio_postgres::Error> for Rejected {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Failed(error)
    }
}

/// Why no host can be used.
pub(crate) fn no_server(addresses: &[Config], rejected: Vec<Option<Rejected>>) -> NoServer {
    let mut unfit = None;
    let reasons: Vec<_> = addresses
        .iter()
        .zip(rejected.into_iter().flatten())
        .map(|(config, rejected)| {
            let reason = match rejected {
                Rejected::Unfit(found) => {
                    unfit = unfit.max(Some(found));
                    found.to_string()
                }
                Rejected::Failed(error) => crate::error::chain(&error),
                Rejected::Silent => "it does not answer".to_owned(),
            };
            if addresses.len() > 1 {
                format!("{}: {reason}", address(config))
            } else {
                reason
            }
        })
        .collect();
    NoServer {
        reason: reasons.join("; "),
        unfit,
    }
}

/// A server as the first statement of a connection found it.
pub(crate) struct Description {
    synchronous_commit: String,
    is_read_only: bool,
    waits_for_standby: bool,
    has_standby: bool,
    pub(crate) timeline: String,
    /// Its clock, in microseconds.
    pub(crate) now: i64,
}

impl Description {
    pub(crate) fn read(row: Option<&Row>) -> Result<Self, tokio_postgres::Error> {
        // The statement always has one row; without it nothing is assumed in the server's favour.
        let Some(row) = row else {
            return Ok(Self {
                synchronous_commit: String::new(),
                is_read_only: true,
                waits_for_standby: false,
                has_standby: false,
                timeline: String::new(),
                now: 0,
            });
        };
        Ok(Self {
            synchronous_commit: row.try_get(0)?,
            is_read_only: row.try_get(1)?,
            waits_for_standby: row.try_get(2)?,
            has_standby: row.try_get(3)?,
            timeline: row.try_get(4)?,
            now: row.try_get(5)?,
        })
    }

    pub(crate) fn unfit(&self, durability: Durability) -> Option<Unfit> {
        if self.is_read_only {
            return Some(Unfit::ReadOnly);
        }
        if !["on", "remote_apply"].contains(&self.synchronous_commit.as_str()) {
            return Some(Unfit::NotDurable);
        }
        if durability == Durability::Replicated && !self.waits_for_standby {
            return Some(Unfit::NotReplicated);
        }
        (self.waits_for_standby && !self.has_standby).then_some(Unfit::NoStandby)
    }
}
