//! Books that can be watched, and a shop that dies at a point of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process};
use semel_testkit::database::Database;
use semel_testkit::pg_proxy::{Proxy, Step};
use serde_json::json;
use tempfile::TempDir;

use super::{Moment, Point, first_line};
use crate::supervised::Shop;

/// Where the books are.
pub(super) enum Ground {
    /// The shop watches itself, and kills itself.
    Sqlite(TempDir),
    /// A proxy watches it, and kills it.
    Postgres {
        /// Before the proxy, which is gone first.
        proxy: Proxy,
        database: Database,
        watch: Arc<Mutex<Watch>>,
    },
}

/// What the proxy has seen, and what it waits for.
#[derive(Default)]
pub(super) struct Watch {
    /// The last that was done in the transaction of a connection, while it is in one. What comes
    /// before a transaction on its connection is chance.
    last: HashMap<usize, String>,
    seen: Vec<Point>,
    armed: Option<(Point, Pid)>,
}

impl Ground {
    pub(super) fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub(super) fn has_postgres() -> bool {
        let there = std::env::var_os("SEMEL_TEST_POSTGRES_URL").is_some();
        if !there {
            println!("skipped: SEMEL_TEST_POSTGRES_URL names no server");
        }
        there
    }

    pub(super) async fn postgres() -> Self {
        let database = Database::new().await.unwrap();
        let proxy = Proxy::in_front_of(&database.url).await;
        let watch = Arc::new(Mutex::new(Watch::default()));
        let watching = Arc::clone(&watch);
        proxy.watch(move |connection, step| {
            let mut watch = watching.lock().unwrap_or_else(PoisonError::into_inner);
            watch.note(connection, step)
        });
        Self::Postgres {
            proxy,
            database,
            watch,
        }
    }

    /// What the shop is told.
    pub(super) fn store(&self) -> String {
        match self {
            Self::Sqlite(directory) => {
                format!("sqlite:{}", directory.path().join("shop.db").display())
            }
            Self::Postgres { proxy, .. } => proxy.url().to_owned(),
        }
    }

    /// Another for other books.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Sqlite(directory) => directory.path().display().to_string(),
            Self::Postgres { database, .. } => database.url.clone(),
        }
    }

    /// Begins to watch anew.
    pub(super) async fn forget(&self, shop: &Shop) {
        drop(self.seen(shop).await);
    }

    /// What was seen since.
    pub(super) async fn seen(&self, shop: &Shop) -> Vec<Point> {
        match self {
            Self::Sqlite(_) => {
                let ran = shop.get("/kill-point").await.unwrap();
                let ran: Vec<String> = serde_json::from_value(ran).unwrap();
                let pairs = ran.windows(2).map(|pair| Point {
                    after: pair[0].clone(),
                    moment: Moment::Before,
                    sql: pair[1].clone(),
                    nth: 0,
                });
                pairs.collect()
            }
            Self::Postgres { watch, .. } => std::mem::take(&mut watch.lock().unwrap().seen),
        }
    }

    /// From now on the shop dies there.
    pub(super) async fn arm(&self, shop: &Shop, point: &Point) {
        match self {
            Self::Sqlite(_) => {
                let Point {
                    after, sql, nth, ..
                } = point;
                let kill = json!({ "after": after, "before": sql, "nth": nth });
                shop.put("/kill-point", &kill).await;
            }
            Self::Postgres { watch, .. } => {
                let pid = Pid::from_raw(shop.pid.try_into().unwrap()).unwrap();
                watch.lock().unwrap().armed = Some((point.clone(), pid));
            }
        }
    }

    /// The shop lives on, or is dead.
    pub(super) async fn disarm(&self, shop: &Shop, is_alive: bool) {
        match self {
            Self::Sqlite(_) if is_alive => {
                // There is no such statement.
                let never = json!({ "after": "", "before": "", "nth": 1 });
                shop.put("/kill-point", &never).await;
            }
            Self::Sqlite(_) => {}
            Self::Postgres { watch, .. } => watch.lock().unwrap().armed = None,
        }
    }
}

impl Watch {
    /// Says whether the connection goes on.
    fn note(&mut self, connection: usize, step: Step<'_>) -> bool {
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
        let step = Point {
            after,
            moment,
            sql,
            nth: 0,
        };
        let mut goes_on = true;
        if let Some((point, pid)) = &mut self.armed
            && (&point.after, point.moment, &point.sql) == (&step.after, step.moment, &step.sql)
        {
            point.nth -= 1;
            if point.nth == 0 {
                kill_process(*pid, Signal::KILL).unwrap();
                self.armed = None;
                goes_on = false;
            }
        }
        self.seen.push(step);
        goes_on
    }
}
