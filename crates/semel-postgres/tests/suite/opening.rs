//! Opening a store: the schema, the server, and the error messages.

use std::time::Duration;

use crate::support::{completion, granted};
use futures_util::future::join_all;
use semel_core::outbox::Event;
use semel_core::statistics::{Activity, Caller, DecisionCounts, Misuse, RecordCounts};
use semel_core::{Backoff, Fence, Held, Key, KeyScope, Store, Timestamp};
use semel_postgres::{Error, Postgres};
use semel_testkit::database::Database;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_concurrent_opens_create_one_schema() {
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
    assert_eq!(steps, 9);
    assert_eq!(semel_postgres::migrate(&database.url).await.unwrap(), 0);
}

#[tokio::test]
async fn the_printed_migrations_create_the_same_schema() {
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
async fn a_newer_schema_is_refused_and_unchanged() {
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

/// A gateway need not own the schema: it needs only permissions on the rows.
#[tokio::test]
async fn a_user_without_create_permission_gets_instructions_and_can_use_an_existing_schema() {
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

/// After another user migrated, running gateways continue without new grants.
#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one upgrade, step by step")]
async fn an_upgrade_keeps_records_and_existing_write_access() {
    let Some(database) = Database::new().await else {
        return;
    };
    let client = database.client().await;
    for step in [
        include_str!("../../migrations/0000_migrations.sql"),
        include_str!("../../migrations/0001_operations.sql"),
        include_str!("../../migrations/0002_complete.sql"),
        "INSERT INTO semel.migrations (version) VALUES (1), (2)",
    ] {
        client.batch_execute(step).await.unwrap();
    }
    let role = format!("semel_test_\"writer\"_{}", std::process::id());
    let quoted = format!("\"{}\"", role.replace('"', "\"\""));
    // A second attempt as an older version wrote it, with fields of the first attempt.
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
    assert_eq!(semel_postgres::migrate(&database.url).await.unwrap(), 7);
    let url = database
        .url
        .replace("postgres@", &format!("{}@", role.replace('"', "%22")));
    let store = Postgres::open(&url).await.unwrap();
    let id = "018f0000-0000-7000-8000-000000000001".parse().unwrap();
    let fence = Fence { id, attempt: 2 };
    let held = store.complete(fence, completion("{}")).await.unwrap();
    assert_eq!(held, Held::Applied);
    // Not late: the reconciliation of the first attempt does not apply to the second.
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
    store.release_relay("relay".into()).await.unwrap();
    assert_eq!(relay().await.unwrap(), []);
    let caller = Caller {
        scope: KeyScope::Operation,
        tenant: "tenant-1".into(),
        operation: "create_payment".into(),
    };
    store.record_callers(vec![caller]).await.unwrap();
    let found = store.find_key(&Key::new("new").unwrap()).await.unwrap();
    assert_eq!(found.len(), 1);
    let at = Timestamp::from_micros(0);
    let activity = Activity {
        at,
        operation: "create_payment".into(),
        decisions: DecisionCounts::default(),
    };
    let misuse = Misuse {
        tenant: "tenant-1".into(),
        operation: "create_payment".into(),
        count: 1,
        first_at: at,
        last_at: at,
        last_id: id,
    };
    store
        .add_counts(vec![activity], vec![misuse])
        .await
        .unwrap();
    let over = Timestamp::from_micros(1);
    assert_eq!(store.forget_activity(over, 1).await.unwrap(), 1);
    assert_eq!(store.forget_misuses(over, 1).await.unwrap(), 1);
    let counts = RecordCounts {
        began_at: at,
        ended_at: at,
        counts: vec![],
        all_callers: true,
    };
    store.publish_record_counts(counts.clone()).await.unwrap();
    assert_eq!(store.record_counts().await.unwrap(), Some(counts));
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

/// A user who may call `semel_complete` cannot write histories, events or markers.
#[tokio::test]
async fn history_and_publish_functions_are_not_granted_to_public() {
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
async fn a_refused_connection_error_names_the_address_without_the_password() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let url = format!("postgres://alice:secret@{address}/shop");
    let text = Postgres::open(&url).await.unwrap_err().to_string();
    assert!(text.contains(&format!("{address}/shop")), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// The store sets `synchronous_commit` and the isolation level, whatever the database defaults.
#[tokio::test]
async fn commits_are_synchronous_whatever_the_database_default() {
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
