//! The proxy cuts and holds where it says, in front of a real PostgreSQL.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "test code says what is wrong by panicking, and what it leaves out"
)]

use std::time::Duration;

use semel_core::OperationId;
use semel_testkit::pg_proxy::{Proxy, When};
use tokio_postgres::{Client, Config, NoTls};

/// Longest that any of these may take: only a proxy that swallows something gets here.
const LIMIT: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let config: Config = url.parse()?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A table of one test, a direct connection, and a proxy with a client behind it.
struct World {
    table: String,
    direct: Client,
    proxy: Proxy,
    client: Client,
}

impl World {
    /// `None` where there is no PostgreSQL, which is said aloud.
    async fn new() -> Option<Self> {
        let Ok(url) = std::env::var("SEMEL_TEST_POSTGRES_URL") else {
            println!("SKIPPED: no PostgreSQL, SEMEL_TEST_POSTGRES_URL is not set");
            return None;
        };
        let direct = connect(&url).await.unwrap();
        let table = format!("proxy_{}", OperationId::generate()).replace('-', "");
        let create = format!("CREATE TABLE {table} (id int PRIMARY KEY)");
        direct.batch_execute(&create).await.unwrap();
        let proxy = Proxy::in_front_of(&url).await;
        let client = connect(proxy.url()).await.unwrap();
        Some(Self {
            table,
            direct,
            proxy,
            client,
        })
    }

    fn insert(&self) -> String {
        format!("INSERT INTO {} VALUES ($1)", self.table)
    }

    async fn rows(&self) -> Vec<i32> {
        let select = format!("SELECT id FROM {} ORDER BY id", self.table);
        let rows = self.direct.query(&select, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Waits until the server has ended the session of a connection that was cut: only then
    /// is it settled that what it was doing is rolled back.
    async fn forgotten(&self) {
        let others = "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation \
                      WHERE c.relname = $1 AND l.pid <> pg_backend_pid()";
        loop {
            let row = self.direct.query_one(others, &[&self.table]).await.unwrap();
            if row.get::<_, i64>(0) == 0 {
                return;
            }
        }
    }

    async fn end(self) {
        let drop = format!("DROP TABLE {}", self.table);
        self.direct.batch_execute(&drop).await.unwrap();
    }
}

/// Runs a test that must not hang.
async fn within<F: Future<Output = ()>>(test: F) {
    tokio::time::timeout(LIMIT, test).await.unwrap();
}

#[tokio::test]
async fn everything_passes_through() {
    let Some(world) = World::new().await else {
        return;
    };
    within(async {
        // Also while the proxy waits for something that does not come.
        for _ in 0..2 {
            let insert = world.client.prepare(&world.insert()).await.unwrap();
            for id in 0..100 {
                world.client.execute(&insert, &[&id]).await.unwrap();
            }
            let both = tokio::join!(
                world.client.query("SELECT repeat('x', 100000)", &[]),
                world.client.query("SELECT generate_series(1, 1000)", &[]),
            );
            assert_eq!(both.0.unwrap()[0].get::<_, String>(0).len(), 100_000);
            assert_eq!(both.1.unwrap().len(), 1000);
            assert!(world.client.execute(&insert, &[&0]).await.is_err());
            world.client.execute(&insert, &[&100]).await.unwrap();
            assert_eq!(world.rows().await.len(), 101);
            let truncate = format!("TRUNCATE {}", world.table);
            world.client.batch_execute(&truncate).await.unwrap();
            world.proxy.cut(When::answered("nothing of the kind"));
        }
        let client = connect(world.proxy.url()).await.unwrap();
        client.batch_execute("SELECT 1; SELECT 2").await.unwrap();
        assert_eq!(world.proxy.connections(), 2);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_committed() {
    let Some(mut world) = World::new().await else {
        return;
    };
    within(async {
        let lost = world.proxy.cut(When::committed());
        let insert = world.insert();
        let transaction = world.client.transaction().await.unwrap();
        transaction.execute(&insert, &[&1]).await.unwrap();
        assert!(transaction.commit().await.is_err());
        lost.reached().await;
        assert_eq!(world.rows().await, [1]);
        assert!(world.client.is_closed());
        // Once only: the next one is answered.
        let mut again = connect(world.proxy.url()).await.unwrap();
        let transaction = again.transaction().await.unwrap();
        transaction.execute(&insert, &[&2]).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(world.rows().await, [1, 2]);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_commit_that_is_not_forwarded_is_rolled_back() {
    let Some(mut world) = World::new().await else {
        return;
    };
    within(async {
        let lost = world.proxy.cut(When::before("COMMIT"));
        let insert = world.insert();
        let transaction = world.client.transaction().await.unwrap();
        transaction.execute(&insert, &[&1]).await.unwrap();
        assert!(transaction.commit().await.is_err());
        lost.reached().await;
        world.forgotten().await;
        assert_eq!(world.rows().await, [0; 0]);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn an_implicit_commit_whose_answer_is_lost_is_committed() {
    let Some(world) = World::new().await else {
        return;
    };
    within(async {
        let insert = world.insert();
        for (id, when) in [
            (1, When::answered(insert.as_str())),
            (2, When::completed("INSERT")),
            (3, When::completed("INSERT 0 1\0")),
        ] {
            let client = connect(world.proxy.url()).await.unwrap();
            let statement = client.prepare(&insert).await.unwrap();
            let lost = world.proxy.cut(when);
            assert!(client.execute(&statement, &[&id]).await.is_err());
            lost.reached().await;
            assert_eq!(world.rows().await.last(), Some(&id));
        }
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn what_is_not_committed_is_no_moment() {
    let Some(world) = World::new().await else {
        return;
    };
    within(async {
        let insert = world.insert();
        let mut client = connect(world.proxy.url()).await.unwrap();
        let lost = world.proxy.cut(When::completed("INSERT"));
        let open = client.transaction().await.unwrap();
        open.execute(&insert, &[&1]).await.unwrap();
        open.commit().await.unwrap();
        assert!(client.execute(&insert, &[&2]).await.is_err());
        lost.reached().await;
        assert_eq!(world.rows().await, [1, 2]);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_statement_that_is_not_forwarded_is_not_executed() {
    let Some(world) = World::new().await else {
        return;
    };
    within(async {
        let statement = world.client.prepare(&world.insert()).await.unwrap();
        // Preparing it is not executing it.
        let lost = world.proxy.cut(When::before(world.table.as_str()));
        let select = format!("SELECT id FROM {}", world.table);
        world.client.prepare(&select).await.unwrap();
        assert!(world.client.execute(&statement, &[&1]).await.is_err());
        lost.reached().await;
        world.forgotten().await;
        assert_eq!(world.rows().await, [0; 0]);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn the_nth_time_and_every_time_after() {
    let Some(world) = World::new().await else {
        return;
    };
    within(async {
        let insert = world.insert();
        let lost = world
            .proxy
            .cut(When::answered(insert.as_str()).nth(3).every());
        world.client.execute(&insert, &[&1]).await.unwrap();
        world.client.execute(&insert, &[&2]).await.unwrap();
        // A statement that failed is not counted.
        assert!(world.client.execute(&insert, &[&2]).await.is_err());
        assert!(!world.client.is_closed());
        for id in [3, 4] {
            let client = connect(world.proxy.url()).await.unwrap();
            assert!(client.execute(&insert, &[&id]).await.is_err());
        }
        lost.reached_times(2).await;
        world.proxy.heal();
        world.client.execute(&insert, &[&5]).await.unwrap();
        assert_eq!(world.rows().await, [1, 2, 3, 4, 5]);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_is_held_until_it_is_released() {
    let Some(world) = World::new().await else {
        return;
    };
    within(async {
        let insert = world.insert();
        let held = world.proxy.hold(When::completed("INSERT"));
        let mut waiting = Box::pin(world.client.execute(&insert, &[&1]));
        tokio::select! {
            answer = &mut waiting => assert!(answer.is_err(), "it was answered"),
            () = held.reached() => {}
        }
        assert_eq!(world.rows().await, [1]);
        held.open();
        assert_eq!(waiting.await.unwrap(), 1);

        let held = world.proxy.hold(When::before(insert.as_str()));
        let mut waiting = Box::pin(world.client.execute(&insert, &[&2]));
        tokio::select! {
            answer = &mut waiting => assert!(answer.is_err(), "it was answered"),
            () = held.reached() => {}
        }
        assert_eq!(world.rows().await, [1]);
        held.open();
        assert_eq!(waiting.await.unwrap(), 1);
        assert_eq!(world.rows().await, [1, 2]);
        world.end().await;
    })
    .await;
}

#[tokio::test]
async fn all_connections_freeze_end_and_are_refused() {
    let Some(world) = World::new().await else {
        return;
    };
    within(async {
        let insert = world.insert();
        world.proxy.freeze();
        let mut waiting = Box::pin(world.client.execute(&insert, &[&1]));
        // sleeps because nothing tells of what does not happen; a wrong proxy answers sooner
        let soon = tokio::time::sleep(Duration::from_millis(100));
        tokio::select! {
            answer = &mut waiting => assert!(answer.is_err(), "it was answered"),
            () = soon => {}
        }
        assert_eq!(world.rows().await, [0; 0]);
        world.proxy.heal();
        assert_eq!(waiting.await.unwrap(), 1);

        world.proxy.refuse();
        assert!(connect(world.proxy.url()).await.is_err());
        assert_eq!(world.proxy.connections(), 2);
        world.client.execute(&insert, &[&2]).await.unwrap();
        world.proxy.cut_all();
        assert!(world.client.execute(&insert, &[&3]).await.is_err());
        world.proxy.heal();
        let client = connect(world.proxy.url()).await.unwrap();
        client.execute(&insert, &[&4]).await.unwrap();
        drop(client);
        assert_eq!(world.rows().await, [1, 2, 4]);
        world.end().await;
    })
    .await;
}
