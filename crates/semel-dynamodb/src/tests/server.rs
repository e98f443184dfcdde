//! The test servers, and a new table for every case.

use std::env;
use std::sync::Arc;
use std::time::Duration;

use semel_core::Identity;
use semel_core::identity::IdentityHash;
use semel_testkit::ManualClock;
use semel_testkit::conformance::{Fixture, Harness, Scale};
use uuid::Uuid;

use super::settled::Settled;
use crate::conditions::Conditions;
use crate::{Dynamo, Options};

/// The access key of the documentation of AWS, which ExtendDB accepts. dynoxide accepts any.
pub(super) const ACCESS_KEY: (&str, &str) = (
    "AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
);

/// A server that speaks DynamoDB's protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    /// Its indexes follow the table after a moment, as DynamoDB's do.
    ExtendDb,
    Dynoxide,
}

impl Server {
    /// Its endpoint.
    pub(super) fn endpoint(self) -> String {
        let variable = match self {
            Self::ExtendDb => "SEMEL_TEST_EXTENDDB_URL",
            Self::Dynoxide => "SEMEL_TEST_DYNOXIDE_URL",
        };
        env::var(variable).unwrap_or_else(|_| panic!("no {variable}: run `cargo xtask test`"))
    }

    /// The address of a table that does not exist yet.
    pub(super) fn unused_table(self) -> String {
        let name = Uuid::new_v4();
        let endpoint = self.endpoint();
        // Few shards: each costs a request.
        format!("dynamodb://semel-{name}?region=us-east-1&shards=2&endpoint={endpoint}")
    }

    /// The address of a new table.
    pub(super) async fn new_table(self) -> String {
        let url = self.unused_table();
        let migrated = options(&url).migrate().await.unwrap();
        assert!(migrated.is_created);
        url
    }
}

/// Options with the servers' access key.
pub(super) fn options(url: &str) -> Options {
    Options::new(url).credentials(ACCESS_KEY.0, ACCESS_KEY.1)
}

/// A new table on a server for every case.
pub(super) struct OnServer {
    pub(super) server: Server,
    pub(super) conditions: Conditions,
    pub(super) identity_hash: fn(&Identity) -> IdentityHash,
    pub(super) scale: Scale,
}

impl OnServer {
    pub(super) fn new(server: Server) -> Self {
        Self {
            server,
            conditions: Conditions::default(),
            identity_hash: Identity::hash,
            scale: Scale {
                tasks: 24,
                rounds: 4,
                keys: 200,
            },
        }
    }

    pub(super) async fn open(&self, clock: &ManualClock) -> Dynamo {
        let url = self.server.new_table().await;
        let mut options = options(&url)
            .clock(Arc::new(clock.clone()))
            // `Settled` waits for the indexes.
            .index_lag(Duration::ZERO);
        options.unused_after = Duration::ZERO;
        options.conditions = self.conditions;
        options.identity_hash = self.identity_hash;
        options.open().await.unwrap()
    }
}

impl Harness for OnServer {
    type Store = Settled;

    async fn fresh(&self) -> Fixture<Settled> {
        let clock = ManualClock::default();
        let store = self.open(&clock).await;
        let waits = self.server == Server::ExtendDb;
        Fixture::new(Settled { store, waits }, clock)
    }

    fn scale(&self) -> Scale {
        self.scale
    }
}
