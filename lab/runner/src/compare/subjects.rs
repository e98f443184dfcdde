//! The subjects: Semel, what most teams write by hand, and the peers, in pinned versions. Change a
//! version here to test a newer one.

use anyhow::{Result, bail};

/// Where a subject stores its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Store {
    /// Nothing is stored.
    None,
    /// In the process's memory.
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
    /// The same, with a reconciler for unknown outcomes.
    SemelReconciling,
    SemelLayer,
    /// These two have no guard: they are the baselines.
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

/// How a subject is run.
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

/// The subject of the smoke run.
pub(super) const SMOKE: Subject = subject(Guard::SemelGateway, Store::Sqlite);

const fn subject(guard: Guard, store: Store) -> Subject {
    Subject { guard, store }
}

impl Guard {
    /// The name in the tables.
    pub(super) fn title(self) -> &'static str {
        if self == Self::NodeIdempotency {
            return "@node-idempotency/core";
        }
        self.name()
    }

    /// The name on the command line.
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

    /// Its adapter, within `lab/peers`.
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

    /// Whether it is a baseline without a guard.
    pub(super) fn is_baseline(self) -> bool {
        matches!(self, Self::PlainAxum | Self::PlainExpress)
    }

    /// Whether it is put under load. Reconciling does not affect the load, so it is not measured.
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

    /// The packages to install. Those in Rust are in the adapters' lock files.
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

    /// The headers of two callers: the one that the probes use, and another one.
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

/// The named subjects, or all.
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
        let error = chosen(&["unknown-peer".to_owned()])
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("unknown-peer") && error.contains("powertools"),
            "{error}"
        );
    }

    #[test]
    fn every_version_is_pinned_and_documented() {
        let readme = include_str!("../../../peers/README.md");
        for subject in ALL {
            for package in subject.guard.packages() {
                assert!(readme.contains(package), "{package}");
            }
            assert!(readme.contains(&format!("`{}`", subject.guard.name())));
        }
        for manifest in [
            include_str!("../../../peers/rust/axum-idempotent/Cargo.toml"),
            include_str!("../../../peers/rust/idempotent/Cargo.toml"),
        ] {
            assert!(manifest.contains("\"="), "{manifest}");
        }
    }
}
