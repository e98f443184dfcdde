//! Events and inbox markers commit in the transaction of the application's rows.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::shop::{DRIVERS, Driver, Shop};
use crate::support::{completion, granted};
use semel_core::inbox::Once;
use semel_core::outbox::{Event, MAX_PAYLOAD_BYTES};
use semel_core::transaction::{Finished, TransactionWrite};
use semel_core::{Backoff, Held, Store, Transaction};
use semel_postgres::transaction::{OpenTransaction, Sqlx};
use semel_postgres::{InTransaction, Inbox, Outbox, Unwritten};
use tokio_postgres::Client;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// The statements of an effect, with either driver.
trait Run: InTransaction {
    async fn run(&mut self, sql: &str) -> Result<(), Source>;
}

impl Run for OpenTransaction<Arc<Client>> {
    async fn run(&mut self, sql: &str) -> Result<(), Source> {
        Ok(self.batch_execute(sql).await?)
    }
}

impl Run for tokio_postgres::Transaction<'_> {
    async fn run(&mut self, sql: &str) -> Result<(), Source> {
        Ok(self.batch_execute(sql).await?)
    }
}

impl Run for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn run(&mut self, sql: &str) -> Result<(), Source> {
        let sql = sqlx::AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(&mut **self).await?;
        Ok(())
    }
}

impl Run for Sqlx {
    async fn run(&mut self, sql: &str) -> Result<(), Source> {
        self.0.run(sql).await
    }
}

/// Runs the same statements in a transaction of each driver, and commits or rolls back.
macro_rules! in_each {
    ($shop:ident, commit: $commit:expr, |$tx:ident, $name:ident| $work:expr) => {{
        let $name = "begun";
        let mut own = OpenTransaction::begin(Arc::clone(&$shop.client))
            .await
            .unwrap();
        let $tx = &mut own;
        $work;
        if $commit {
            own.commit().await.unwrap();
        } else {
            drop(own);
        }
        let $name = "tokio-postgres";
        let mut client = $shop.database.client().await;
        let mut own = client.transaction().await.unwrap();
        let $tx = &mut own;
        $work;
        if $commit {
            own.commit().await.unwrap();
        } else {
            drop(own);
        }
        let $name = "sqlx";
        let mut own = $shop.pool.begin().await.unwrap();
        let $tx = &mut own;
        $work;
        if $commit {
            own.commit().await.unwrap();
        } else {
            drop(own);
        }
        let $name = "wrapped-sqlx";
        let mut own = Sqlx($shop.pool.begin().await.unwrap());
        let $tx = &mut own;
        $work;
        if $commit {
            own.0.commit().await.unwrap();
        } else {
            drop(own);
        }
    }};
}

const KINDS: i64 = 4;

const BACKOFF: Backoff = Backoff {
    every: Duration::from_secs(1),
    max_every: Duration::from_mins(1),
};

fn event(aggregate: &str, payload: &str) -> Event {
    Event::new("payment.created", aggregate, payload.as_bytes().to_vec()).unwrap()
}

/// The events that a relay would publish, in order.
async fn waiting(shop: &Shop) -> Vec<Event> {
    let claimed = shop
        .store
        .claim_events("relay".into(), Duration::ZERO, 1000)
        .await;
    let events = claimed.unwrap().into_iter().map(|waiting| waiting.event);
    events.collect()
}

fn pay(id: &str) -> String {
    format!("INSERT INTO payments VALUES ('{id}')")
}

#[tokio::test]
async fn an_event_commits_with_its_transaction() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    in_each!(shop, commit: false, |tx, name| {
        tx.run(&pay(name)).await.unwrap();
        Outbox.publish(tx, &event(name, "x")).await.unwrap();
    });
    assert_eq!(waiting(&shop).await, []);
    let mut expected = Vec::new();
    in_each!(shop, commit: true, |tx, name| {
        tx.run(&pay(name)).await.unwrap();
        let event = event(name, "\u{0}\u{e9}");
        Outbox.publish(tx, &event).await.unwrap();
        // Publishing it again adds nothing.
        Outbox.publish(tx, &event).await.unwrap();
        expected.push(event);
    });
    assert_eq!(waiting(&shop).await, expected);
    assert_eq!(shop.payments().await, KINDS);
}

/// Rows, event and completion: one commit, and a fence that holds for all of them.
#[tokio::test]
async fn an_event_commits_with_the_completion() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    for driver in DRIVERS {
        let mut expected = Vec::new();
        for fenced in [true, false] {
            let key = format!("{driver:?} {fenced}");
            let fence = granted(&shop.store, &key).await;
            if fenced {
                shop.store.release(fence, "x".into()).await.unwrap();
            }
            let event = event(&key.replace(' ', "-"), "x");
            let transaction: Box<dyn Transaction> = match driver {
                Driver::TokioPostgres => {
                    let mut tx = OpenTransaction::begin(Arc::clone(&shop.client))
                        .await
                        .unwrap();
                    Outbox.publish(&mut tx, &event).await.unwrap();
                    Box::new(tx)
                }
                Driver::Sqlx => {
                    let mut tx = Sqlx(shop.pool.begin().await.unwrap());
                    Outbox.publish(&mut tx, &event).await.unwrap();
                    Box::new(tx)
                }
            };
            let write = TransactionWrite::Complete(completion("paid"));
            let finished = transaction
                .finish(fence, Box::new(move |_| Some(write)))
                .await
                .unwrap();
            assert_eq!(finished == Finished::Held(Held::Applied), !fenced, "{key}");
            expected.extend((!fenced).then_some(event));
            assert_eq!(waiting(&shop).await, expected, "{key}");
        }
        let ids = expected.iter().map(|event| event.id).collect();
        shop.store.mark_sent(ids).await.unwrap();
    }
}

/// Waits until a session waits for a lock in this database.
async fn wait_for_blocked_session(client: &Client) {
    let waits = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while client.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::task::yield_now().await;
    }
}

/// Within an aggregate the order of numbers is the order of commits: a second transaction gets its
/// number after the first has ended. Others are not held up.
#[tokio::test]
async fn events_of_an_aggregate_are_in_the_order_of_commits() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let watching = shop.database.client().await;
    let [first, second, other] =
        [("a", "1"), ("a", "2"), ("b", "1")].map(|(aggregate, payload)| event(aggregate, payload));
    let mut tx = OpenTransaction::begin(Arc::clone(&shop.client))
        .await
        .unwrap();
    Outbox.publish(&mut tx, &first).await.unwrap();
    let mut free = shop.pool.begin().await.unwrap();
    Outbox.publish(&mut free, &other).await.unwrap();
    free.commit().await.unwrap();
    let mut behind = shop.pool.begin().await.unwrap();
    {
        let mut publishing = Box::pin(Outbox.publish(&mut behind, &second));
        tokio::select! {
            published = &mut publishing => panic!("did not wait: {published:?}"),
            () = wait_for_blocked_session(&watching) => {}
        }
        assert_eq!(waiting(&shop).await, std::slice::from_ref(&other));
        tx.commit().await.unwrap();
        publishing.await.unwrap();
    }
    assert_eq!(waiting(&shop).await, [first.clone(), other.clone()]);
    behind.commit().await.unwrap();
    assert_eq!(waiting(&shop).await, [first, other, second]);
}

/// Rust and the SQL function refuse the same invalid events.
#[tokio::test]
async fn an_invalid_event_is_refused() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let good = event("payment/1", "x");
    let long = "\u{e9}".repeat(127);
    let names = [
        "",
        " ",
        "a b",
        "a\tb",
        "\u{7f}",
        "\u{85}",
        "\u{a0}",
        "\u{1680}",
        "a\u{2003}",
    ]
    .into_iter()
    .chain([
        "\u{2028}", "\u{2029}", "\u{202f}", "\u{205f}", "\u{3000}", "\u{1}", "a\n",
    ])
    .chain(["a", "pay\u{10d}", "\u{200b}", "\u{ad}", "~!\u{1f980}"])
    .map(str::to_owned)
    .chain([long.clone() + "a", long + "ab"]);
    let publish = "SELECT semel_publish($1, $2, $3, $4)";
    let call = async |event: &Event| {
        let Event {
            kind,
            aggregate,
            payload,
            ..
        } = event;
        let id = uuid::Uuid::from_bytes(*event.id.as_bytes());
        let written = shop
            .client
            .query(publish, &[&id, &&**kind, &&**aggregate, &&payload[..]])
            .await
            .map(drop);
        written.map_err(|error| error.code().unwrap().code().to_owned())
    };
    let mut written = 0;
    for name in names {
        for event in [
            Event {
                kind: name.as_str().into(),
                ..good.clone()
            },
            Event {
                aggregate: name.as_str().into(),
                ..good.clone()
            },
        ] {
            let event = event.with_id(semel_core::outbox::EventId::generate());
            let fits = event.check().is_ok();
            let result = call(&event).await;
            let expected = if fits {
                Ok(())
            } else {
                Err("SEM02".to_owned())
            };
            assert_eq!(result, expected, "{name:?}");
            written += usize::from(fits);
            let mut tx = OpenTransaction::begin(Arc::clone(&shop.client))
                .await
                .unwrap();
            let result = Outbox.publish(&mut tx, &event).await;
            assert_eq!(result.is_ok(), fits, "{result:?}");
        }
    }
    let large = Event {
        payload: vec![b'1'; MAX_PAYLOAD_BYTES + 1].into(),
        ..good.clone()
    };
    assert_eq!(call(&large).await, Err("SEM02".to_owned()));
    assert!(shop.store.publish(large).await.is_err());
    assert_eq!(waiting(&shop).await.len(), written);
    assert!(written > 0);
}

/// Publishing and marking require no secret, so a role needs an explicit grant.
#[tokio::test]
async fn the_functions_require_an_execute_grant() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let role = format!("semel_test_messages_{}", std::process::id());
    let client = &shop.client;
    let calls = [
        "SELECT semel_publish(gen_random_uuid(), 'k', 'a', NULL)",
        "SELECT semel_once('ledger', 'm-1', 1000000)",
    ];
    let set = format!("CREATE ROLE {role}; SET ROLE {role}");
    client.batch_execute(&set).await.unwrap();
    for call in calls {
        assert!(client.batch_execute(call).await.is_err(), "{call}");
    }
    let given = format!(
        "RESET ROLE;
         GRANT EXECUTE ON FUNCTION semel.semel_publish, semel.semel_once TO {role};
         SET ROLE {role}"
    );
    client.batch_execute(&given).await.unwrap();
    for call in calls {
        client.batch_execute(call).await.unwrap();
    }
    assert!(
        client
            .query("SELECT * FROM semel.outbox", &[])
            .await
            .is_err()
    );
    let reset = format!("RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}");
    client.batch_execute(&reset).await.unwrap();
    assert_eq!(waiting(&shop).await.len(), 1);
    for (call, wrong) in [
        ("consumer", "SELECT semel_once('', 'm', 1)"),
        ("message", "SELECT semel_once('c', NULL, 1)"),
        ("message", "SELECT semel_once('c', repeat('x', 256), 1)"),
        ("remember_us", "SELECT semel_once('c', 'm', 0)"),
    ] {
        let error = client.query(wrong, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "SEM02");
        assert!(error.message().contains(call), "{error}");
    }
}

async fn once<X: Run>(tx: &mut X, consumer: &str, message: &str) -> Result<Once<u32>, Source> {
    let inbox = Inbox::default();
    let sql = pay(&format!("{consumer} {message}"));
    let effect = async |tx: &mut X| {
        tx.run(&sql).await?;
        Ok::<_, Source>(7)
    };
    inbox.once(tx, consumer, message, effect).await
}

#[tokio::test]
async fn a_message_delivered_twice_takes_effect_once() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    in_each!(shop, commit: true, |tx, name| {
        assert_eq!(once(tx, name, "m-1").await.unwrap(), Once::Done(7), "{name}");
        // In the same transaction, too.
        assert_eq!(once(tx, name, "m-1").await.unwrap(), Once::Again, "{name}");
    });
    assert_eq!(shop.payments().await, KINDS);
    in_each!(shop, commit: true, |tx, name| {
        assert_eq!(once(tx, name, "m-1").await.unwrap(), Once::Again, "{name}");
        // Another message, and another consumer of the same one.
        assert_eq!(once(tx, name, "m-2").await.unwrap(), Once::Done(7), "{name}");
        let other = format!("{name} too");
        assert_eq!(once(tx, &other, "m-1").await.unwrap(), Once::Done(7), "{name}");
    });
    assert_eq!(shop.payments().await, 3 * KINDS);
    in_each!(shop, commit: false, |tx, name| {
        assert_eq!(once(tx, name, "m-3").await.unwrap(), Once::Done(7), "{name}");
    });
    in_each!(shop, commit: true, |tx, name| {
        assert_eq!(once(tx, name, "m-3").await.unwrap(), Once::Done(7), "{name}");
    });
}

/// A failed effect leaves neither a marker nor rows, also if the transaction commits. Rows written
/// before the effect stay.
#[tokio::test]
async fn a_failed_effect_leaves_no_marker() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let inbox = Inbox::default();
    in_each!(shop, commit: true, |tx, name| {
        tx.run(&pay(name)).await.unwrap();
        let failed = inbox.once(tx, name, "m", async |tx| {
            tx.run(&pay(&format!("{name} failed"))).await?;
            Err::<(), Source>("said so".into())
        });
        assert_eq!(failed.await.unwrap_err().to_string(), "said so", "{name}");
        // By a statement.
        let failed = inbox.once(tx, name, "m", async |tx| tx.run(&pay(name)).await);
        failed.await.unwrap_err();
        // A statement failed, and the effect ignores it.
        let failed = inbox.once(tx, name, "m", async |tx| {
            let _ = tx.run(&pay(name)).await;
            Ok::<_, Source>(())
        });
        let failed = failed.await.unwrap_err();
        assert!(failed.downcast_ref::<Unwritten>().is_some(), "{name}: {failed:?}");
        // Within another effect, which fails after it.
        let failed = inbox.once(tx, name, "m", async |tx| {
            let inner = inbox.once(tx, name, "n", async |_| Err::<(), Source>("inner".into()));
            inner.await.unwrap_err();
            Err::<(), Source>("outer".into())
        });
        failed.await.unwrap_err();
    });
    assert_eq!(shop.payments().await, KINDS);
    in_each!(shop, commit: true, |tx, name| {
        assert_eq!(once(tx, name, "m").await.unwrap(), Once::Done(7), "{name}");
        assert_eq!(once(tx, name, "n").await.unwrap(), Once::Done(7), "{name}");
    });
}

/// A dropped effect counts as failed.
#[tokio::test]
async fn a_dropped_effect_leaves_no_marker() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let inbox = Inbox::default();
    in_each!(shop, commit: true, |tx, name| {
        tx.run(&pay(name)).await.unwrap();
        {
            let (there, arrived) = tokio::sync::oneshot::channel();
            let dropped = inbox.once(tx, name, "m", async |tx| {
                tx.run(&pay(&format!("{name} dropped"))).await?;
                there.send(()).unwrap();
                std::future::pending::<Result<(), Source>>().await
            });
            tokio::select! {
                ended = dropped => panic!("{name}: {ended:?}"),
                arrived = arrived => arrived.unwrap(),
            }
        }
    });
    assert_eq!(shop.payments().await, KINDS);
    in_each!(shop, commit: true, |tx, name| {
        assert_eq!(once(tx, name, "m").await.unwrap(), Once::Done(7), "{name}");
    });
}

/// Of two concurrent deliveries, the second waits until the first ends.
#[tokio::test]
async fn a_concurrent_second_delivery_waits_for_the_first() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let watching = shop.database.client().await;
    for commits in [true, false] {
        let message = format!("m {commits}");
        let mut first = OpenTransaction::begin(Arc::clone(&shop.client))
            .await
            .unwrap();
        assert_eq!(
            once(&mut first, "c", &message).await.unwrap(),
            Once::Done(7)
        );
        let mut second = shop.pool.begin().await.unwrap();
        let mut waiting = Box::pin(once(&mut second, "c", &message));
        tokio::select! {
            ended = &mut waiting => panic!("did not wait: {ended:?}"),
            () = wait_for_blocked_session(&watching) => {}
        }
        let expected = if commits {
            first.commit().await.unwrap();
            Once::Again
        } else {
            drop(first);
            Once::Done(7)
        };
        assert_eq!(waiting.await.unwrap(), expected);
        second.commit().await.unwrap();
    }
    assert_eq!(shop.payments().await, 2);
}

#[tokio::test]
async fn invalid_names_are_refused_and_old_markers_are_forgotten() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let long = "x".repeat(255);
    let inbox = Inbox::new(Duration::ZERO);
    in_each!(shop, commit: true, |tx, name| {
        for (consumer, message) in [("", "m"), ("c", ""), ("c", "a\0b")] {
            let refused = once(tx, consumer, message).await.unwrap_err();
            assert!(refused.downcast_ref::<Unwritten>().is_some(), "{refused:?}");
        }
        let longer = format!("{long}x");
        once(tx, &longer, "m").await.unwrap_err();
        once(tx, "c", &longer).await.unwrap_err();
        let effect = async |_: &mut _| Ok::<_, Source>(name);
        let longest = format!("{name:x<255}");
        let done = inbox.once(tx, &longest, &long, effect).await.unwrap();
        assert_eq!(done, Once::Done(name));
    });
    // A marker is settled at once, and removed after its retention by the database's clock.
    let parked = shop.store.claim_parked(BACKOFF, 10).await;
    assert_eq!(parked.unwrap(), []);
    assert_eq!(shop.store.forget_messages(10).await.unwrap(), 4);
}

/// PostgreSQL answers the commit of a failed transaction without an error.
#[tokio::test]
async fn a_commit_after_a_failure_is_refused() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let mut tx = OpenTransaction::begin(Arc::clone(&shop.client))
        .await
        .unwrap();
    tx.run(&pay("lost")).await.unwrap();
    tx.run("nonsense").await.unwrap_err();
    tx.commit().await.unwrap_err();
    assert_eq!(shop.payments().await, 0);
    // The connection still works.
    let mut tx = OpenTransaction::begin(Arc::clone(&shop.client))
        .await
        .unwrap();
    tx.run(&pay("kept")).await.unwrap();
    let mut committing = Box::pin(tx.commit());
    // Dropped before the answer it is committed or not, and over.
    let _ = committing
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    drop(committing);
    assert!((0..=1).contains(&shop.payments().await));
}

/// A consumer runs in a task of its own.
#[tokio::test]
async fn a_consumer_can_be_spawned() {
    let Some(shop) = Shop::new().await else {
        return;
    };
    let (client, pool) = (Arc::clone(&shop.client), shop.pool.clone());
    let consumer = tokio::spawn(async move {
        let inbox = Inbox::default();
        let mut tx = OpenTransaction::begin(client).await?;
        let paid = event("payment/1", "x");
        let once = inbox.once(&mut tx, "c", "m", async |tx| {
            tx.execute("INSERT INTO payments VALUES ('1')", &[]).await?;
            Outbox.publish(tx, &paid).await?;
            Ok::<_, Source>(())
        });
        assert_eq!(once.await?, Once::Done(()));
        tx.commit().await?;
        let mut tx = Sqlx(pool.begin().await?);
        let once = inbox.once(&mut tx, "c", "n", async |tx| {
            let insert = sqlx::query("INSERT INTO payments VALUES ('2')");
            insert.execute(&mut *tx.0).await?;
            Ok::<_, Source>(())
        });
        assert_eq!(once.await?, Once::Done(()));
        tx.0.commit().await?;
        Ok::<_, Source>(())
    });
    consumer.await.unwrap().unwrap();
    assert_eq!(shop.payments().await, 2);
    assert_eq!(waiting(&shop).await.len(), 1);
}
