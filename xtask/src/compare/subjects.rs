//! Who is compared: Semel, what most teams write, and the peers, in the versions that the figures
//! are about. A newer one is tried by changing it here.

use anyhow::{Result, bail};

/// Where a subject remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// Nothing is remembered.
    None,
    /// In the process: gone with it.
    Memory,
    /// In a file.
    Sqlite,
    Postgres,
    /// The second is a cache, and may be lost.
    PostgresAndRedis,
    /// Every write is synced: `appendfsync always`.
    Redis,
    /// A server with a log of its own.
    Restate,
}

impl Store {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
            Self::PostgresAndRedis => "PostgreSQL, Redis as cache",
            Self::Redis => "Redis, appendfsync always",
            Self::Restate => "Restate server",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Guard {
    SemelGateway,
    /// The same, with somebody to ask when the outcome is unknown.
    SemelReconciling,
    SemelLayer,
    /// Nothing guards these two: what the others are to be read beside.
    PlainAxum,
    PlainExpress,
    HandWritten,
    AxumIdempotent,
    Idempotent,
    ExpressIdempotency,
    NodeIdempotency,
    Restate,
    Dbos,
    Powertools,
}

/// How a subject is brought to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adapter {
    /// The released binary, in front of the application without any guard, with its configuration.
    Gateway(&'static str),
    /// A program of the adapters in Rust, and the workspace that it is in.
    Rust {
        workspace: &'static str,
        package: &'static str,
        binary: &'static str,
    },
    Node(&'static str),
    /// The same, behind a server of its own.
    Restate(&'static str),
    Python(&'static str),
}

/// One row of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) guard: Guard,
    pub(super) store: Store,
}

pub(super) const ALL: [Subject; 16] = [
    subject(Guard::PlainAxum, Store::None),
    subject(Guard::PlainExpress, Store::None),
    subject(Guard::SemelGateway, Store::Sqlite),
    subject(Guard::SemelReconciling, Store::Sqlite),
    subject(Guard::SemelGateway, Store::PostgresAndRedis),
    subject(Guard::SemelLayer, Store::Sqlite),
    subject(Guard::SemelLayer, Store::Postgres),
    subject(Guard::HandWritten, Store::Postgres),
    subject(Guard::AxumIdempotent, Store::Memory),
    subject(Guard::AxumIdempotent, Store::Postgres),
    subject(Guard::Idempotent, Store::Redis),
    subject(Guard::ExpressIdempotency, Store::Redis),
    subject(Guard::NodeIdempotency, Store::Redis),
    subject(Guard::Restate, Store::Restate),
    subject(Guard::Dbos, Store::Postgres),
    subject(Guard::Powertools, Store::Redis),
];

const fn subject(guard: Guard, store: Store) -> Subject {
    Subject { guard, store }
}

impl Guard {
    /// What the tables call it.
    pub(super) fn title(self) -> &'static str {
        if self == Self::NodeIdempotency {
            return "@node-idempotency/core";
        }
        self.name()
    }

    /// What the command line calls it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PlainAxum => "plain-axum",
            Self::PlainExpress => "plain-express",
            Self::SemelGateway => "semel-gateway",
            Self::SemelReconciling => "semel-gateway-reconciling",
            Self::SemelLayer => "semel-layer",
            Self::HandWritten => "hand-written",
            Self::AxumIdempotent => "axum-idempotent",
            Self::Idempotent => "idempotent",
            Self::ExpressIdempotency => "express-idempotency",
            Self::NodeIdempotency => "node-idempotency",
            Self::Restate => "restate",
            Self::Dbos => "dbos",
            Self::Powertools => "powertools",
        }
    }

    /// Where ours for it is, within `evidence/peers`.
    pub(super) fn adapter(self, store: Store) -> Adapter {
        let rust = |package, binary| Adapter::Rust {
            workspace: "rust",
            package,
            binary,
        };
        match self {
            Self::PlainAxum => rust("app", "plain"),
            Self::PlainExpress => Adapter::Node("node/plain-express.cjs"),
            Self::SemelGateway if store == Store::PostgresAndRedis => {
                Adapter::Gateway("semel-cached.toml")
            }
            Self::SemelGateway => Adapter::Gateway("semel.toml"),
            Self::SemelReconciling => Adapter::Gateway("semel-reconciling.toml"),
            Self::SemelLayer => rust("with-semel", "with-semel"),
            Self::HandWritten => rust("hand-written", "hand-written"),
            Self::Idempotent => rust("with-idempotent", "with-idempotent"),
            Self::AxumIdempotent => Adapter::Rust {
                workspace: "rust/axum-idempotent",
                package: "with-axum-idempotent",
                binary: "with-axum-idempotent",
            },
            Self::ExpressIdempotency => Adapter::Node("node/express-idempotency.cjs"),
            Self::NodeIdempotency => Adapter::Node("node/node-idempotency.cjs"),
            Self::Dbos => Adapter::Node("node/dbos.cjs"),
            Self::Restate => Adapter::Restate("node/restate.cjs"),
            Self::Powertools => Adapter::Python("python/powertools.py"),
        }
    }

    pub(super) fn is_ours(self) -> bool {
        matches!(
            self,
            Self::SemelGateway | Self::SemelReconciling | Self::SemelLayer
        )
    }

    /// Whether it guards nothing, and is there to be read beside.
    pub(super) fn is_baseline(self) -> bool {
        matches!(self, Self::PlainAxum | Self::PlainExpress)
    }

    /// Whether it is put under load. Reconciling is for what went wrong, and costs nothing before.
    pub(super) fn is_loaded(self) -> bool {
        self != Self::SemelReconciling
    }

    pub(super) fn language(self) -> &'static str {
        match self {
            Self::SemelGateway
            | Self::SemelReconciling
            | Self::PlainAxum
            | Self::SemelLayer
            | Self::HandWritten
            | Self::AxumIdempotent
            | Self::Idempotent => "Rust",
            Self::PlainExpress | Self::ExpressIdempotency | Self::NodeIdempotency | Self::Dbos => {
                "JavaScript"
            }
            Self::Restate => "Rust, JavaScript",
            Self::Powertools => "Python",
        }
    }

    pub(super) fn version(self) -> &'static str {
        match self {
            Self::SemelGateway | Self::SemelReconciling | Self::SemelLayer => {
                env!("CARGO_PKG_VERSION")
            }
            Self::PlainAxum => "axum 0.8",
            Self::PlainExpress => "express 5.3.0",
            Self::HandWritten => "axum 0.8, sqlx 0.9",
            Self::AxumIdempotent => "0.6.0",
            Self::Idempotent => "2.0.0",
            Self::ExpressIdempotency => "1.0.6",
            Self::NodeIdempotency => "1.0.11",
            Self::Restate => "1.7.12, SDK 1.17.2",
            Self::Dbos => "5.3.0",
            Self::Powertools => "3.37.0",
        }
    }

    /// What its registry is asked for. Those in Rust are in the adapters' own lock files.
    pub(super) fn packages(self) -> &'static [&'static str] {
        match self {
            Self::PlainAxum
            | Self::SemelGateway
            | Self::SemelReconciling
            | Self::SemelLayer
            | Self::HandWritten
            | Self::AxumIdempotent
            | Self::Idempotent => &[],
            Self::PlainExpress => &["express@5.3.0"],
            // The client is the one that its adapter asks for; ours makes it.
            Self::ExpressIdempotency => &[
                "express@5.3.0",
                "express-idempotency@1.0.6",
                "express-idempotency-redis-adapter@1.0.8",
                "@redis/client@1.6.1",
            ],
            Self::NodeIdempotency => &[
                "express@5.3.0",
                "@node-idempotency/core@1.0.11",
                "@node-idempotency/storage-adapter-redis@1.0.2",
            ],
            Self::Restate => &[
                "@restatedev/restate-server@1.7.12",
                "@restatedev/restate-sdk@1.17.2",
            ],
            Self::Dbos => &["@dbos-inc/dbos-sdk@5.3.0"],
            // It does not load without boto3, which Lambda has.
            Self::Powertools => &[
                "aws-lambda-powertools[redis]==3.37.0",
                "redis==8.1.0",
                "boto3==1.44.0",
            ],
        }
    }

    /// What says who is calling: the probes' usual caller, and another one.
    pub(super) fn callers(self) -> [&'static str; 2] {
        match self {
            // Its tenants are sessions. An id is 16 bytes in base64url.
            Self::AxumIdempotent => [
                "Cookie: session=AAAAAAAAAAAAAAAAAAAAAA",
                "Cookie: session=BBBBBBBBBBBBBBBBBBBBBA",
            ],
            Self::PlainAxum
            | Self::PlainExpress
            | Self::SemelGateway
            | Self::SemelReconciling
            | Self::SemelLayer
            | Self::HandWritten
            | Self::Idempotent
            | Self::ExpressIdempotency
            | Self::NodeIdempotency
            | Self::Restate
            | Self::Dbos
            | Self::Powertools => [
                "Authorization: Bearer first-caller",
                "Authorization: Bearer second-caller",
            ],
        }
    }
}

/// Those that are named, else all.
pub(super) fn chosen(names: &[String]) -> Result<Vec<Subject>> {
    let known = |name: &str| ALL.iter().any(|subject| subject.guard.name() == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let mut names: Vec<_> = ALL.iter().map(|subject| subject.guard.name()).collect();
        names.dedup();
        bail!("there is no `{unknown}`; there are {}", names.join(", "));
    }
    let wanted = |subject: &Subject| {
        names.is_empty() || names.iter().any(|name| name == subject.guard.name())
    };
    Ok(ALL.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_are_chosen_by_name_and_an_unknown_name_is_an_error() {
        assert_eq!(chosen(&[]).unwrap(), ALL);
        let some = chosen(&["axum-idempotent".to_owned()]).unwrap();
        assert_eq!(some.len(), 2);
        let error = chosen(&["nobody".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("nobody") && error.contains("powertools"),
            "{error}"
        );
    }

    #[test]
    fn every_version_is_pinned_and_told_to_the_reader() {
        let readme = include_str!("../../../evidence/peers/README.md");
        for subject in ALL {
            for package in subject.guard.packages() {
                assert!(readme.contains(package), "{package}");
            }
            assert!(readme.contains(&format!("`{}`", subject.guard.name())));
        }
        for manifest in [
            include_str!("../../../evidence/peers/rust/axum-idempotent/Cargo.toml"),
            include_str!("../../../evidence/peers/rust/idempotent/Cargo.toml"),
        ] {
            assert!(manifest.contains("\"="), "{manifest}");
        }
    }
}
