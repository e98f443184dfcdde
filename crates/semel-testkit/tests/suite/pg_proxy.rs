//! The proxy cuts and holds at its triggers, in front of a real PostgreSQL.

use std::time::Duration;

use semel_core::OperationId;
use semel_testkit::pg_proxy::{Proxy, Trigger};
use tokio_postgres::{Client, Config, NoTls};

/// The limit of a test: only a proxy that loses a message reaches it.
const LIMIT: Duration = Duration::from_secs(30);

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let config: Config = url.parse()?;
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// A table of one test, a direct connection, and a proxy with a client behind it.
struct ProxyFixture {
    table: String,
    direct: Client,
    proxy: Proxy,
    client: Client,
}

impl ProxyFixture {
    /// Prints SKIPPED and returns `None` without PostgreSQL.
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
    let Some(fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        // Also while the proxy waits for a trigger that does not fire.
        for _ in 0..2 {
            let insert = fixture.client.prepare(&fixture.insert()).await.unwrap();
            for id in 0..100 {
                fixture.client.execute(&insert, &[&id]).await.unwrap();
            }
            let both = tokio::join!(
                fixture.client.query("SELECT repeat('x', 100000)", &[]),
                fixture.client.query("SELECT generate_series(1, 1000)", &[]),
            );
            assert_eq!(both.0.unwrap()[0].get::<_, String>(0).len(), 100_000);
            assert_eq!(both.1.unwrap().len(), 1000);
            assert!(fixture.client.execute(&insert, &[&0]).await.is_err());
            fixture.client.execute(&insert, &[&100]).await.unwrap();
            assert_eq!(fixture.rows().await.len(), 101);
            let truncate = format!("TRUNCATE {}", fixture.table);
            fixture.client.batch_execute(&truncate).await.unwrap();
            fixture.proxy.cut(Trigger::answered("nothing of the kind"));
        }
        let client = connect(fixture.proxy.url()).await.unwrap();
        client.batch_execute("SELECT 1; SELECT 2").await.unwrap();
        assert_eq!(fixture.proxy.connections(), 2);
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_committed() {
    let Some(mut fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let lost = fixture.proxy.cut(Trigger::committed());
        let insert = fixture.insert();
        let transaction = fixture.client.transaction().await.unwrap();
        transaction.execute(&insert, &[&1]).await.unwrap();
        assert!(transaction.commit().await.is_err());
        lost.reached().await;
        assert_eq!(fixture.rows().await, [1]);
        assert!(fixture.client.is_closed());
        // Once only: the next one is answered.
        let mut again = connect(fixture.proxy.url()).await.unwrap();
        let transaction = again.transaction().await.unwrap();
        transaction.execute(&insert, &[&2]).await.unwrap();
        transaction.commit().await.unwrap();
        assert_eq!(fixture.rows().await, [1, 2]);
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_commit_that_is_not_forwarded_is_rolled_back() {
    let Some(mut fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let lost = fixture.proxy.cut(Trigger::before("COMMIT"));
        let insert = fixture.insert();
        let transaction = fixture.client.transaction().await.unwrap();
        transaction.execute(&insert, &[&1]).await.unwrap();
        assert!(transaction.commit().await.is_err());
        lost.reached().await;
        fixture.forgotten().await;
        assert_eq!(fixture.rows().await, [0; 0]);
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn an_implicit_commit_whose_answer_is_lost_is_committed() {
    let Some(fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let insert = fixture.insert();
        for (id, when) in [
            (1, Trigger::answered(insert.as_str())),
            (2, Trigger::completed("INSERT")),
            (3, Trigger::completed("INSERT 0 1\0")),
        ] {
            let client = connect(fixture.proxy.url()).await.unwrap();
            let statement = client.prepare(&insert).await.unwrap();
            let lost = fixture.proxy.cut(when);
            assert!(client.execute(&statement, &[&id]).await.is_err());
            lost.reached().await;
            assert_eq!(fixture.rows().await.last(), Some(&id));
        }
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_statement_inside_a_transaction_does_not_trigger_completed() {
    let Some(fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let insert = fixture.insert();
        let mut client = connect(fixture.proxy.url()).await.unwrap();
        let lost = fixture.proxy.cut(Trigger::completed("INSERT"));
        let open = client.transaction().await.unwrap();
        open.execute(&insert, &[&1]).await.unwrap();
        open.commit().await.unwrap();
        assert!(client.execute(&insert, &[&2]).await.is_err());
        lost.reached().await;
        assert_eq!(fixture.rows().await, [1, 2]);
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_statement_that_is_not_forwarded_is_not_executed() {
    let Some(fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let statement = fixture.client.prepare(&fixture.insert()).await.unwrap();
        // Preparing it is not executing it.
        let lost = fixture.proxy.cut(Trigger::before(fixture.table.as_str()));
        let select = format!("SELECT id FROM {}", fixture.table);
        fixture.client.prepare(&select).await.unwrap();
        assert!(fixture.client.execute(&statement, &[&1]).await.is_err());
        lost.reached().await;
        fixture.forgotten().await;
        assert_eq!(fixture.rows().await, [0; 0]);
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn a_trigger_fires_at_the_nth_match_or_every_match() {
    let Some(fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let insert = fixture.insert();
        let lost = fixture
            .proxy
            .cut(Trigger::answered(insert.as_str()).nth(3).every());
        fixture.client.execute(&insert, &[&1]).await.unwrap();
        fixture.client.execute(&insert, &[&2]).await.unwrap();
        // A statement that failed is not counted.
        assert!(fixture.client.execute(&insert, &[&2]).await.is_err());
        assert!(!fixture.client.is_closed());
        for id in [3, 4] {
            let client = connect(fixture.proxy.url()).await.unwrap();
            assert!(client.execute(&insert, &[&id]).await.is_err());
        }
        lost.reached_times(2).await;
        fixture.proxy.heal();
        fixture.client.execute(&insert, &[&5]).await.unwrap();
        assert_eq!(fixture.rows().await, [1, 2, 3, 4, 5]);
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn an_answer_is_held_until_it_is_released() {
    let Some(fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let insert = fixture.insert();
        let held = fixture.proxy.hold(Trigger::completed("INSERT"));
        let mut waiting = Box::pin(fixture.client.execute(&insert, &[&1]));
        tokio::select! {
            answer = &mut waiting => assert!(answer.is_err(), "it was answered"),
            () = held.reached() => {}
        }
        assert_eq!(fixture.rows().await, [1]);
        held.open();
        assert_eq!(waiting.await.unwrap(), 1);

        let held = fixture.proxy.hold(Trigger::before(insert.as_str()));
        let mut waiting = Box::pin(fixture.client.execute(&insert, &[&2]));
        tokio::select! {
            answer = &mut waiting => assert!(answer.is_err(), "it was answered"),
            () = held.reached() => {}
        }
        assert_eq!(fixture.rows().await, [1]);
        held.open();
        assert_eq!(waiting.await.unwrap(), 1);
        assert_eq!(fixture.rows().await, [1, 2]);
        fixture.end().await;
    })
    .await;
}

#[tokio::test]
async fn all_connections_freeze_end_and_are_refused() {
    let Some(fixture) = ProxyFixture::new().await else {
        return;
    };
    within(async {
        let insert = fixture.insert();
        fixture.proxy.freeze();
        let mut waiting = Box::pin(fixture.client.execute(&insert, &[&1]));
        // sleeps because the proxy signals no missing answer; a wrong proxy answers sooner
        let soon = tokio::time::sleep(Duration::from_millis(100));
        tokio::select! {
            answer = &mut waiting => assert!(answer.is_err(), "it was answered"),
            () = soon => {}
        }
        assert_eq!(fixture.rows().await, [0; 0]);
        fixture.proxy.heal();
        assert_eq!(waiting.await.unwrap(), 1);

        fixture.proxy.refuse();
        assert!(connect(fixture.proxy.url()).await.is_err());
        assert_eq!(fixture.proxy.connections(), 2);
        fixture.client.execute(&insert, &[&2]).await.unwrap();
        fixture.proxy.cut_all();
        assert!(fixture.client.execute(&insert, &[&3]).await.is_err());
        fixture.proxy.heal();
        let client = connect(fixture.proxy.url()).await.unwrap();
        client.execute(&insert, &[&4]).await.unwrap();
        drop(client);
        assert_eq!(fixture.rows().await, [1, 2, 4]);
        fixture.end().await;
    })
    .await;
}
