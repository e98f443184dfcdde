//! Opening a store: the schema, the server, and what is said when it does not work.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::time::Duration;

use futures_util::future::join_all;
use semel_core::figures::{Activity, Caller, Census, Misuse, Told};
use semel_core::outbox::Event;
use semel_core::{Backoff, Fence, Figures, Held, Inspect, Key, KeyScope, Outbox, Store, Timestamp};
use semel_postgres::{Error, Postgres};
use semel_testkit::database::Database;
use support::{completion, granted};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_processes_that_start_at_once_make_one_schema() {
    let Some(database) = Database::new().await else {
        return;
    };
    let opened = join_all((0..10).map(|_| Postgres::open(&database.url))).await;
    for (nth, store) in opened.into_iter().enumerate() {
        granted(&store.unwrap(), &format!("key-{nth}")).await;
    }
    let client = database.client().await;
    let steps = "SELECT count(*) FROM semel.migrations";
    let steps: i64 = client.query_one(steps, &[]).await.unwrap().get(0);
    assert_eq!(steps, 5);
    assert_eq!(semel_postgres::migrate(&database.url).await.unwrap(), 0);
}

#[tokio::test]
async fn what_is_printed_makes_the_same_schema() {
    let Some(database) = Database::new().await else {
        return;
    };
    let client = database.client().await;
    client
        .batch_execute(&semel_postgres::schema())
        .await
        .unwrap();
    assert_eq!(semel_postgres::migrate(&database.url).await.unwrap(), 0);
    let store = Postgres::open(&database.url).await.unwrap();
    granted(&store, "k").await;
}

#[tokio::test]
async fn a_newer_schema_is_left_alone() {
    let Some(database) = Database::new().await else {
        return;
    };
    semel_postgres::migrate(&database.url).await.unwrap();
    let client = database.client().await;
    let newer = "INSERT INTO semel.migrations (version) VALUES (99)";
    client.batch_execute(newer).await.unwrap();
    let error = Postgres::open(&database.url).await.unwrap_err();
    assert!(
        matches!(error, Error::NewerSchema { found: 99, .. }),
        "{error}"
    );
}

/// A gateway need not own the schema: what it needs is the rows.
#[tokio::test]
async fn a_user_without_the_right_to_create_is_told_what_to_do_and_can_use_what_is_there() {
    let Some(database) = Database::new().await else {
        return;
    };
    let client = database.client().await;
    let role = format!("semel_test_role_{}", std::process::id());
    client
        .batch_execute(&format!("CREATE ROLE {role} LOGIN"))
        .await
        .unwrap();
    let url = database.url.replace("postgres@", &format!("{role}@"));
    let error = Postgres::open(&url).await.unwrap_err();
    assert!(matches!(error, Error::Migrate { .. }), "{error}");
    assert!(error.to_string().contains("semel migrate"), "{error}");
    semel_postgres::migrate(&database.url).await.unwrap();
    client
        .batch_execute(&format!(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel TO {role};
             GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA semel TO {role}"
        ))
        .await
        .unwrap();
    let store = Postgres::open(&url).await.unwrap();
    let fence = granted(&store, "k").await;
    store.release(fence, "refused".into()).await.unwrap();
    assert_eq!(store.history(fence.id).await.unwrap().len(), 1);
    drop(store);
    drop(client);
    let server = semel_testkit::database::server().unwrap();
    drop(database);
    let admin = semel_testkit::database::client(&server).await;
    admin
        .batch_execute(&format!("DROP ROLE {role}"))
        .await
        .unwrap();
}

/// Somebody else migrates, and the gateways that are there already go on without new grants.
#[tokio::test]
async fn an_upgrade_keeps_the_records_and_lets_those_write_who_could() {
    let Some(database) = Database::new().await else {
        return;
    };
    let client = database.client().await;
    for step in [
        include_str!("../migrations/0000_migrations.sql"),
        include_str!("../migrations/0001_operations.sql"),
        include_str!("../migrations/0002_complete.sql"),
        "INSERT INTO semel.migrations (version) VALUES (1), (2)",
    ] {
        client.batch_execute(step).await.unwrap();
    }
    let role = format!("semel_test_\"writer\"_{}", std::process::id());
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    // A second attempt, as it was written before: with what is left of the first.
    client
        .batch_execute(&format!(
            "CREATE ROLE {quoted} LOGIN;
             GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA semel TO {quoted};
             INSERT INTO semel.operations (
                 key_hash, id, scope, tenant, operation, key, fingerprint_version, fingerprint,
                 status, attempt, owner, locked_until, reconcile_after, reconcile_attempts,
                 replay_us, body_us, created_at, updated_at
             ) VALUES (
                 gen_random_uuid(), '018f0000-0000-7000-8000-000000000001', 'operation',
                 'tenant-1', 'create_payment', 'old', 1, decode(repeat('01', 32), 'hex'),
                 'in_progress', 2, 'test', 1, 1, 3, 1000000, 1000000, 1, 1
             )"
        ))
        .await
        .unwrap();
    assert_eq!(semel_postgres::migrate(&database.url).await.unwrap(), 3);
    let url = database
        .url
        .replace("postgres@", &format!("{}@", role.replace('"', "%22")));
    let store = Postgres::open(&url).await.unwrap();
    let id = "018f0000-0000-7000-8000-000000000001".parse().unwrap();
    let fence = Fence { id, attempt: 2 };
    let held = store.complete(fence, completion("{}")).await.unwrap();
    assert_eq!(held, Held::Applied);
    // Not late: the look at the first attempt says nothing about the second.
    assert_eq!(store.history(id).await.unwrap(), []);
    let fence = granted(&store, "new").await;
    store.release(fence, "refused".into()).await.unwrap();
    assert_eq!(store.history(fence.id).await.unwrap().len(), 1);
    let event = Event::new("payment.created", "payment/1", "{}").unwrap();
    store.publish(event.clone()).await.unwrap();
    let relay = || store.claim_events("relay".into(), Duration::ZERO, 10);
    assert_eq!(relay().await.unwrap().len(), 1);
    let backoff = Backoff {
        every: Duration::ZERO,
        max_every: Duration::ZERO,
    };
    store.hold_back(event.id, "no", backoff).await.unwrap();
    store.mark_sent(vec![event.id]).await.unwrap();
    store.stand_down("relay".into()).await.unwrap();
    assert_eq!(relay().await.unwrap(), []);
    let caller = Caller {
        scope: KeyScope::Operation,
        tenant: "tenant-1".into(),
        operation: "create_payment".into(),
    };
    store.meet(vec![caller]).await.unwrap();
    let found = store.find_key(&Key::new("new").unwrap()).await.unwrap();
    assert_eq!(found.len(), 1);
    let at = Timestamp::from_micros(0);
    let activity = Activity {
        at,
        operation: "create_payment".into(),
        told: Told::default(),
    };
    let misuse = Misuse {
        tenant: "tenant-1".into(),
        operation: "create_payment".into(),
        count: 1,
        first_at: at,
        last_at: at,
        last_id: id,
    };
    store.count(vec![activity], vec![misuse]).await.unwrap();
    let over = Timestamp::from_micros(1);
    assert_eq!(store.forget_activity(over, 1).await.unwrap(), 1);
    assert_eq!(store.forget_misuses(over, 1).await.unwrap(), 1);
    let census = Census {
        began_at: at,
        ended_at: at,
        counts: vec![],
        all_callers: true,
    };
    store.publish_census(census.clone()).await.unwrap();
    assert_eq!(store.census().await.unwrap(), Some(census));
    drop(store);
    drop(client);
    let server = semel_testkit::database::server().unwrap();
    drop(database);
    let admin = semel_testkit::database::client(&server).await;
    admin
        .batch_execute(&format!("DROP ROLE {quoted}"))
        .await
        .unwrap();
}

/// Whoever may call `semel_complete` may write neither histories nor events, and mark nothing.
#[tokio::test]
async fn nobody_else_tells_histories_or_publishes() {
    let Some(database) = Database::new().await else {
        return;
    };
    semel_postgres::migrate(&database.url).await.unwrap();
    let client = database.client().await;
    let open = "SELECT proname::text FROM pg_proc, pg_namespace AS n
        WHERE pronamespace = n.oid AND n.nspname = 'semel'
          AND proname IN ('tell', 'forget_history', 'publish', 'semel_publish', 'semel_once')
          AND (proacl IS NULL OR EXISTS (SELECT FROM aclexplode(proacl) WHERE grantee = 0))";
    let open = client.query(open, &[]).await.unwrap();
    let open: Vec<String> = open.iter().map(|row| row.get(0)).collect();
    assert!(open.is_empty(), "everybody may call {open:?}");
}

#[tokio::test]
async fn nobody_at_the_address_is_said_with_the_address_and_without_the_password() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let url = format!("postgres://alice:secret@{address}/shop");
    let text = Postgres::open(&url).await.unwrap_err().to_string();
    assert!(text.contains(&format!("{address}/shop")), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// A plan for durability that the server's defaults undo is none.
#[tokio::test]
async fn commits_wait_for_the_disk_whatever_the_database_says() {
    let Some(database) = Database::new().await else {
        return;
    };
    let client = database.client().await;
    let (_, name) = database.url.rsplit_once('/').unwrap();
    client
        .batch_execute(&format!(
            "ALTER DATABASE {name} SET synchronous_commit = off;
             ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
        ))
        .await
        .unwrap();
    let store = Postgres::open(&database.url).await.unwrap();
    client
        .batch_execute(
            "CREATE TABLE seen (setting text);
             CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO public.seen VALUES
                     (current_setting('synchronous_commit')),
                     (current_setting('transaction_isolation'));
                 RETURN NEW;
             END $$;
             CREATE TRIGGER look AFTER INSERT ON semel.operations
                 FOR EACH ROW EXECUTE FUNCTION look()",
        )
        .await
        .unwrap();
    granted(&store, "k").await;
    let rows = client.query("SELECT setting FROM seen", &[]).await.unwrap();
    let seen: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(seen, ["on", "read committed"]);
}
