//! The shop's database: watches its statements, and kills the shop at a point between two of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use semel_testkit::database::Database;
use semel_testkit::pg_proxy::{Proxy, Step};
use tempfile::TempDir;

use crate::shop_process::ShopProcess;
use crate::statements::{KillPoint, Moment, first_line};

/// A database whose statements are traced.
pub(crate) enum TracedDatabase {
    /// The shop traces its own statements and kills itself.
    Sqlite(TempDir),
    /// A proxy in front of the server traces them and kills the shop.
    Postgres {
        /// Declared before the database, so that it is dropped first.
        proxy: Proxy,
        database: Database,
        trace: Arc<Mutex<Trace>>,
    },
}

/// What the proxy has seen, and where it kills the shop.
#[derive(Default)]
pub(crate) struct Trace {
    /// The last statement in the open transaction of each connection. Outside of a transaction
    /// the order of statements on a connection is arbitrary.
    last: HashMap<usize, String>,
    seen: Vec<KillPoint>,
    armed: Option<(KillPoint, Pid)>,
}

impl TracedDatabase {
    pub(crate) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(crate) fn has_postgres() -> bool {
        let there = std::env::var_os("SEMEL_TEST_POSTGRES_URL").is_some();
        if !there {
            println!("SKIPPED: SEMEL_TEST_POSTGRES_URL is not set");
        }
        there
    }

    pub(crate) async fn postgres() -> Self {
        let database = Database::new().await.unwrap();
        let proxy = Proxy::in_front_of(&database.url).await;
        let trace = Arc::new(Mutex::new(Trace::default()));
        let traced = Arc::clone(&trace);
        proxy.watch(move |connection, step| {
            let mut trace = traced.lock().unwrap_or_else(PoisonError::into_inner);
            trace.record(connection, step)
        });
        Self::Postgres {
            proxy,
            database,
            trace,
        }
    }

    /// The value of the shop's `--store`.
    pub(crate) fn store(&self) -> String {
        match self {
            Self::Sqlite(directory) => {
                format!("sqlite:{}", directory.path().join("shop.db").display())
            }
            Self::Postgres { proxy, .. } => proxy.url().to_owned(),
        }
    }

    /// A name that no other database has.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Sqlite(directory) => directory.path().display().to_string(),
            Self::Postgres { database, .. } => database.url.clone(),
        }
    }

    /// The points that the shop has passed since the last call.
    pub(crate) async fn take_points(&self, shop: &ShopProcess) -> Vec<KillPoint> {
        match self {
            Self::Sqlite(_) => {
                let statements = shop.take_statements().await;
                let pairs = statements.windows(2).map(|pair| KillPoint {
                    after: pair[0].clone(),
                    moment: Moment::Before,
                    sql: pair[1].clone(),
                    nth: 0,
                });
                pairs.collect()
            }
            Self::Postgres { trace, .. } => std::mem::take(&mut trace.lock().unwrap().seen),
        }
    }

    /// Kills the shop when it reaches the point.
    pub(crate) async fn arm(&self, shop: &ShopProcess, point: &KillPoint) {
        match self {
            Self::Sqlite(_) => {
                let set = shop.set_kill_point(&point.after, &point.sql, point.nth);
                assert!(set.await, "the shop is not alive");
            }
            Self::Postgres { trace, .. } => {
                let pid = Pid::from_raw(shop.pid.try_into().unwrap()).unwrap();
                trace.lock().unwrap().armed = Some((point.clone(), pid));
            }
        }
    }

    /// Undoes [`arm`](Self::arm). Returns whether the shop is still alive: a background job may have
    /// reached the point since it was last seen.
    pub(crate) async fn disarm(&self, shop: &ShopProcess, was_alive: bool) -> bool {
        match self {
            // An empty statement never runs.
            Self::Sqlite(_) => was_alive && shop.set_kill_point("", "", 1).await,
            Self::Postgres { trace, .. } => {
                let unreached = trace.lock().unwrap().armed.take().is_some();
                was_alive && unreached
            }
        }
    }
}

impl Trace {
    /// Returns whether the proxy keeps the connection.
    fn record(&mut self, connection: usize, step: Step<'_>) -> bool {
        let (moment, sql) = match step {
            Step::Before(sql) => (Moment::Before, sql.to_owned()),
            Step::Answered(done) => (Moment::Answered, done.join("; ")),
        };
        let begins = |word| first_line(&sql).starts_with(word);
        let after = self.last.get(&connection).cloned().unwrap_or_default();
        if moment == Moment::Answered {
            if sql.contains("COMMIT") || first_line(&sql) == "ROLLBACK" {
                self.last.remove(&connection);
            } else if self.last.contains_key(&connection) || begins("BEGIN") || begins("START") {
                self.last.insert(connection, sql.clone());
            }
        }
        let step = KillPoint {
            after,
            moment,
            sql,
            nth: 0,
        };
        let mut keeps_connection = true;
        if let Some((point, pid)) = &mut self.armed
            && (&point.after, point.moment, &point.sql) == (&step.after, step.moment, &step.sql)
        {
            point.nth -= 1;
            if point.nth == 0 {
                kill_process(*pid, Signal::KILL).unwrap();
                self.armed = None;
                keeps_connection = false;
            }
        }
        self.seen.push(step);
        keeps_connection
    }
}
