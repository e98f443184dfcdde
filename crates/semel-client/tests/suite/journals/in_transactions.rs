//! An intent that commits with the row that caused it, in the application's PostgreSQL.

use std::time::Duration;

use http::HeaderValue;
use semel_client::journal::postgres::{SCHEMA, intend};
use semel_client::{Error, Journal};
use semel_testkit::database::Database;
use tokio_postgres::{Config, NoTls};

use super::client;
use crate::world::{Scripted, payment, response};

const BY_SQL: &str = "SELECT key FROM semel.intend('invoice-1', 'POST', 'http://api.example/payments', \
                      '{\"Content-Type\": \"application/json\"}', '{\"amount\":1}')";

async fn installed() -> Option<Database> {
    let database = Database::new().await?;
    database.client().await.batch_execute(SCHEMA).await.unwrap();
    Some(database)
}

fn journal(database: &Database) -> Journal {
    Journal::postgres(database.url.parse().unwrap(), NoTls)
}

#[tokio::test]
async fn a_committed_intent_is_sent_with_its_stored_key() {
    let Some(database) = installed().await else {
        return;
    };
    let mut application = database.client().await;
    let transaction = application.transaction().await.unwrap();
    let stored: String = transaction.query_one(BY_SQL, &[]).await.unwrap().get(0);
    transaction.commit().await.unwrap();

    let transport = Scripted::new([response(201, "done")]);
    let client = client(journal(&database), &transport);
    // The client computes the same fingerprint as the function.
    let response = client.call("invoice-1", payment()).await.unwrap();
    assert_eq!(response.body, "done");
    assert_eq!(transport.keys(), [format!("\"{stored}\"")]);
    assert_eq!(
        transport.sent.lock().unwrap()[0].headers["content-type"],
        "application/json"
    );
    assert!(
        client
            .finish("invoice-1")
            .await
            .unwrap()
            .unwrap()
            .replayed_from_journal
    );
    assert_eq!(client.finish("invoice-2").await.unwrap(), None);
}

#[tokio::test]
async fn an_intent_that_was_rolled_back_is_not_sent() {
    let Some(database) = installed().await else {
        return;
    };
    let mut application = database.client().await;
    let transaction = application.transaction().await.unwrap();
    let lifetime = Duration::from_mins(1);
    intend(&transaction, "invoice-1", &payment(), lifetime)
        .await
        .unwrap();
    transaction.rollback().await.unwrap();
    let transport = Scripted::new([response(201, "done")]);
    assert_eq!(
        client(journal(&database), &transport)
            .resume()
            .await
            .unwrap()
            .len(),
        0
    );
    assert_eq!(transport.keys().len(), 0);
}

#[tokio::test]
async fn another_request_under_a_known_intent_aborts_the_transaction() {
    let Some(database) = installed().await else {
        return;
    };
    let application = database.client().await;
    application.query_one(BY_SQL, &[]).await.unwrap();
    application.query_one(BY_SQL, &[]).await.unwrap();
    let other = BY_SQL.replace("\"amount\":1", "\"amount\":2");
    let refused = application.query_one(&other, &[]).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "SEM03");
}

#[tokio::test]
async fn credentials_of_an_intent_are_not_stored() {
    let Some(database) = installed().await else {
        return;
    };
    let mut application = database.client().await;
    let transaction = application.transaction().await.unwrap();
    let mut request = payment();
    let credentials = HeaderValue::from_static("Bearer t0p");
    request.headers.insert("authorization", credentials);
    let lifetime = Duration::from_mins(1);
    intend(&transaction, "invoice-1", &request, lifetime)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    let rows = "SELECT intents::text FROM semel.intents";
    let row: String = application.query_one(rows, &[]).await.unwrap().get(0);
    assert!(row.contains("authorization"), "{row}");
    assert!(!row.contains("t0p"), "{row}");
}

#[tokio::test]
async fn sql_stores_no_credentials_and_no_key_of_the_application() {
    let Some(database) = installed().await else {
        return;
    };
    let mut application = database.client().await;
    let with = |url: &str, headers: &str| {
        format!("SELECT headers::text FROM semel.intend('invoice-1', 'POST', '{url}', '{headers}')")
    };
    let refused = [
        with("https://user:t0p@api.example/", "{}"),
        with("https:/user@api.example/", "{}"),
        with("https://api.example/", "{\"Idempotency-Key\": \"mine\"}"),
    ];
    for sql in refused {
        let refused = application.query_one(&sql, &[]).await.unwrap_err();
        assert_eq!(refused.code().unwrap().code(), "SEM05", "{sql}");
    }
    let transaction = application.transaction().await.unwrap();
    let mut request = payment();
    request.url.set_password(Some("t0p")).unwrap();
    let refused = intend(&transaction, "invoice-1", &request, Duration::from_mins(1)).await;
    assert_eq!(refused.unwrap_err().code().unwrap().code(), "SEM05");
    transaction.rollback().await.unwrap();
    let sql = with(
        "https://api.example/a@b",
        "{\"Authorization\": \"Bearer t0p\", \"api-version\": \"7\"}",
    );
    let row = application.query_one(&sql, &[]).await.unwrap();
    let stored = "[[\"api-version\", \"7\"], [\"authorization\", \"\"]]";
    assert_eq!(row.get::<_, &str>(0), stored);
    assert_eq!(journal(&database).list().await.unwrap().len(), 1);
}

/// The functions are the interface: an application cannot read other requests, or change keys.
#[tokio::test]
async fn a_role_needs_only_the_functions() {
    let Some(database) = installed().await else {
        return;
    };
    let owner = database.client().await;
    let role = format!("app_{}", uuid::Uuid::new_v4().simple());
    owner
        .batch_execute(&format!(
            "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA semel TO {role}"
        ))
        .await
        .unwrap();
    let mut config: Config = database.url.parse().unwrap();
    config.user(&role);
    let (application, driver) = config.connect(NoTls).await.unwrap();
    tokio::spawn(driver);
    let denied = application.query_one(BY_SQL, &[]).await.unwrap_err();
    assert_eq!(denied.code().unwrap().code(), "42501");
    owner
        .batch_execute(&format!(
            "GRANT EXECUTE ON FUNCTION semel.intend, semel.find_intent, semel.note_intent, \
             semel.finish_intent, semel.open_intents TO {role}"
        ))
        .await
        .unwrap();
    let transport = Scripted::new([response(201, "done")]);
    let journal = Journal::postgres(config, NoTls);
    client(journal, &transport)
        .call("invoice-1", payment())
        .await
        .unwrap();
    let denied = application
        .query("TABLE semel.intents", &[])
        .await
        .unwrap_err();
    assert_eq!(denied.code().unwrap().code(), "42501");
    owner
        .batch_execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
}

/// The store and the journal share a schema, whichever was first.
#[tokio::test]
async fn the_store_and_the_journal_live_in_one_database() {
    let Some(database) = Database::new().await else {
        return;
    };
    let application = database.client().await;
    semel_postgres::Postgres::open(&database.url).await.unwrap();
    application.batch_execute(SCHEMA).await.unwrap();
    application.batch_execute(SCHEMA).await.unwrap();
    semel_postgres::Postgres::open(&database.url).await.unwrap();
    application.query_one(BY_SQL, &[]).await.unwrap();

    let other = Database::new().await.unwrap();
    let application = other.client().await;
    application.batch_execute(SCHEMA).await.unwrap();
    semel_postgres::Postgres::open(&other.url).await.unwrap();
    application.query_one(BY_SQL, &[]).await.unwrap();
}

#[tokio::test]
async fn nothing_is_sent_where_the_intent_cannot_be_stored() {
    let Some(database) = Database::new().await else {
        return;
    };
    let transport = Scripted::new([response(201, "done")]);
    let refused = client(journal(&database), &transport)
        .call("invoice-1", payment())
        .await;
    assert!(matches!(refused, Err(Error::Journal(_))), "{refused:?}");
    assert_eq!(transport.keys().len(), 0);
}

/// A role that does not wait for the disk would lose the key that it sends.
#[tokio::test]
async fn a_session_without_durable_commits_waits_for_this_one() {
    let Some(database) = installed().await else {
        return;
    };
    let mut application = database.client().await;
    application
        .batch_execute("SET synchronous_commit = off")
        .await
        .unwrap();
    let transaction = application.transaction().await.unwrap();
    transaction.query_one(BY_SQL, &[]).await.unwrap();
    let row = transaction
        .query_one("SHOW synchronous_commit", &[])
        .await
        .unwrap();
    assert_eq!(row.get::<_, &str>(0), "on");
    transaction.rollback().await.unwrap();
}

/// A connection that ended, and a server that restarted, cost nothing.
#[tokio::test]
async fn a_closed_connection_is_replaced() {
    let Some(database) = installed().await else {
        return;
    };
    let transport = Scripted::new([response(201, "done")]);
    let client = client(journal(&database), &transport);
    client.call("invoice-1", payment()).await.unwrap();
    let application = database.client().await;
    application
        .query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE datname = current_database() AND pid <> pg_backend_pid()",
            &[],
        )
        .await
        .unwrap();
    client.call("invoice-2", payment()).await.unwrap();
    assert_eq!(transport.keys().len(), 2);
}

#[tokio::test]
async fn an_intent_that_was_not_sent_yet_ends_with_its_first_409() {
    let Some(database) = installed().await else {
        return;
    };
    let application = database.client().await;
    application.query_one(BY_SQL, &[]).await.unwrap();
    let refuses = Scripted::new([response(409, "closed")]);
    let client = client(journal(&database), &refuses);
    let finished = client.finish("invoice-1").await.unwrap().unwrap();
    assert_eq!(finished.status, 409);
    // Of two clients that start at once, one is the first, and fixes the form of the key.
    let other = BY_SQL.replace("invoice-1", "invoice-2");
    let key: String = application.query_one(&other, &[]).await.unwrap().get(0);
    let start = "SELECT is_sent, key_form FROM semel.start_intent('invoice-2', $1, $2)";
    for (was_sent, form) in [(false, "k: {key}"), (true, "k: \"{key}\"")] {
        let row = application.query_one(start, &[&key, &form]).await.unwrap();
        assert_eq!(row.get::<_, bool>(0), was_sent);
        assert_eq!(row.get::<_, &str>(1), "k: {key}");
    }
}

#[tokio::test]
async fn the_lifetime_of_a_key_begins_when_it_is_first_sent() {
    let Some(database) = installed().await else {
        return;
    };
    let application = database.client().await;
    let stored = "SELECT key, expires_at FROM semel.intend('invoice-1', 'POST', 'http://api.example/', \
                  lifetime => '1 hour', now_us => 0)";
    let row = application.query_one(stored, &[]).await.unwrap();
    assert_eq!(row.get::<_, i64>(1), 3_600_000_000);
    let start = "SELECT expires_at, expires_at - (extract(epoch FROM clock_timestamp()) * 1000000)::bigint \
                 FROM semel.start_intent('invoice-1', $1)";
    let key: String = row.get(0);
    let row = application.query_one(start, &[&key]).await.unwrap();
    let (expires_at, left): (i64, i64) = (row.get(0), row.get(1));
    assert!((3_000_000_000..=3_600_000_000).contains(&left), "{left}");
    // Only once.
    let row = application.query_one(start, &[&key]).await.unwrap();
    assert_eq!(row.get::<_, i64>(0), expires_at);
}

#[tokio::test]
async fn no_function_waits_longer_for_a_lock_than_ten_seconds() {
    let Some(database) = installed().await else {
        return;
    };
    let functions = "SELECT proname FROM pg_proc WHERE pronamespace = 'semel'::regnamespace AND provolatile = 'v' \
                     AND prosecdef AND NOT coalesce(proconfig, '{}') @> '{lock_timeout=10s}'";
    let rows = database.client().await.query(functions, &[]).await.unwrap();
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, Vec::<String>::new());
}
