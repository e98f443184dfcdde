//! Events and markers commit with the application's statements, or not at all.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::support::{File, insert};
use rusqlite::Connection;
use semel_core::Error;
use semel_core::Store as _;
use semel_core::inbox::Once;
use semel_core::outbox::{Event, EventId};
use semel_sqlite::{Inbox, Unwritten};

fn event(payload: &str) -> Event {
    Event::new("payment.created", "payment/1", payload.to_owned()).unwrap()
}

/// The events that a relay would claim.
async fn waiting(file: &File) -> Vec<EventId> {
    let claimed = file
        .store
        .claim_events("relay".into(), Duration::from_secs(1), 100);
    let claimed = claimed.await.unwrap();
    claimed.iter().map(|waiting| waiting.event.id).collect()
}

#[tokio::test]
async fn an_event_commits_with_its_rows() {
    let file = File::new().await;
    let (outbox, created) = (file.store.outbox(), event("created"));
    let id = created.id;
    let written = file.store.write(move |connection| {
        insert(connection, "paid")?;
        outbox.publish(connection, &created)?;
        // Publishing it again adds nothing.
        outbox.publish(connection, &created)
    });
    written.await.unwrap();
    assert_eq!(file.rows(), ["paid"]);
    assert_eq!(waiting(&file).await, [id]);
}

/// An error, a panic and a savepoint rollback each roll the event back with the statements.
#[tokio::test]
async fn an_event_is_rolled_back_with_its_statements() {
    let file = File::new().await;
    let outbox = file.store.outbox();
    let failed = file.store.write(move |connection| {
        outbox.publish(connection, &event("never"))?;
        Err::<(), _>(rusqlite::Error::InvalidQuery)
    });
    assert!(failed.await.is_err());
    let outbox = file.store.outbox();
    let panicked = file.store.write(move |connection| -> rusqlite::Result<()> {
        outbox.publish(connection, &event("never"))?;
        panic!("on purpose")
    });
    assert!(panicked.await.is_err());
    // A rollback to the application's savepoint keeps the event before it.
    let (outbox, kept) = (file.store.outbox(), event("kept"));
    let id = kept.id;
    let partly = file.store.write(move |connection| {
        outbox.publish(connection, &kept)?;
        connection.execute_batch("SAVEPOINT mine")?;
        outbox.publish(connection, &event("never"))?;
        connection.execute_batch("ROLLBACK TO mine; RELEASE mine")
    });
    partly.await.unwrap();
    assert_eq!(waiting(&file).await, [id]);
}

/// An event on another connection would be committed without its change.
#[tokio::test]
async fn publishing_outside_the_stores_transaction_is_refused() {
    let file = File::new().await;
    let other = File::new().await;
    let (outbox, inbox) = (file.store.outbox(), file.store.inbox(Inbox::REMEMBER));
    let is_refused = move |connection: &Connection| {
        let published = outbox.publish(connection, &event("never"));
        assert!(matches!(published, Err(Unwritten::Outside)));
        let once = inbox.once(connection, "ledger", "m", |_| Ok::<_, Unwritten>(()));
        assert!(matches!(once, Err(Unwritten::Outside)));
    };
    // Outside of all statements, in a transaction or not.
    let mut own = file.open();
    is_refused(&own);
    is_refused(&own.transaction().unwrap());
    // Inside, on another connection to the same file.
    let (path, refused) = (file.path.clone(), is_refused.clone());
    let written = file.store.write(move |_| {
        let own = Connection::open(path)?;
        refused(&own);
        own.execute_batch("BEGIN")?;
        refused(&own);
        Ok::<_, rusqlite::Error>(())
    });
    written.await.unwrap();
    // Inside another store's statements: the event would be in a file without a relay.
    let refused = is_refused.clone();
    let written = other.store.write(move |connection| {
        refused(connection);
        Ok::<_, rusqlite::Error>(())
    });
    written.await.unwrap();
    // After a statement that rolled all back.
    let written = file.store.write(move |connection| {
        let rolled_back = connection.execute_batch(
            "CREATE TABLE once (a UNIQUE ON CONFLICT ROLLBACK);
             INSERT INTO once VALUES (1), (1)",
        );
        assert!(rolled_back.is_err());
        is_refused(connection);
        Ok::<_, rusqlite::Error>(())
    });
    assert!(written.await.is_err());
    for file in [&file, &other] {
        assert_eq!(waiting(file).await, []);
        assert_eq!(file.texts("SELECT id FROM semel_inbox"), [""; 0]);
    }
}

#[tokio::test]
async fn invalid_events_and_message_names_are_refused() {
    let file = File::new().await;
    let (outbox, inbox) = (file.store.outbox(), file.store.inbox(Inbox::REMEMBER));
    let written = file.store.write(move |connection| {
        let spaced = Event {
            kind: "a b".into(),
            ..event("never")
        };
        let published = outbox.publish(connection, &spaced);
        assert!(matches!(published, Err(Unwritten::Event(_))));
        let long = "x".repeat(256);
        for (consumer, message) in [("", "m"), ("ledger", ""), (&long, "m"), ("ledger", &long)] {
            let once = inbox.once(connection, consumer, message, |_| Ok::<_, Unwritten>(()));
            assert!(matches!(once, Err(Unwritten::Name)), "{consumer} {message}");
        }
        inbox.once(connection, "ledger", &long[1..], |_| {
            Ok::<_, rusqlite::Error>(())
        })
    });
    assert_eq!(written.await.unwrap(), Once::Done(()));
    assert_eq!(waiting(&file).await, []);
}

/// Only Semel's own statement is authorized: no other before it, after it, or
/// where it fails, not for a copy of its text, and not for triggers.
#[tokio::test]
async fn only_the_publish_statement_may_write_semel_tables() {
    let file = File::new().await;
    let text = include_str!("../../queries/publish.sql");
    let is_denied = |refused: rusqlite::Result<()>| {
        let code = refused.unwrap_err().sqlite_error_code();
        assert_eq!(
            code,
            Some(rusqlite::ErrorCode::AuthorizationForStatementDenied)
        );
    };
    let outbox = file.store.outbox();
    let written = file.store.write(move |connection| {
        let copied = || connection.prepare_cached(text).map(|_| ());
        is_denied(copied());
        outbox.publish(connection, &event("one"))?;
        is_denied(copied());
        is_denied(connection.prepare(text).map(|_| ()));
        // The application may create a trigger on its own table, but the trigger may not write.
        connection.execute_batch(
            "CREATE TRIGGER forge AFTER INSERT ON rows BEGIN
                 INSERT INTO semel_outbox (id, kind, aggregate, payload, written_at, tries)
                 VALUES (randomblob(16), 'k', 'a', x'', 0, 0);
             END",
        )?;
        is_denied(insert(connection, "forged"));
        connection.execute_batch("DROP TRIGGER forge")
    });
    written.await.unwrap();
    assert_eq!(waiting(&file).await.len(), 1);

    // Only another connection of the application can create a trigger on Semel's table.
    for does in [
        "UPDATE semel_operations SET status = 'failed_retryable'",
        "INSERT INTO semel_outbox SELECT NULL, randomblob(16), 'k', 'a', x'', 0, 0, NULL, NULL",
        "INSERT INTO semel_inbox VALUES ('once:ledger', NEW.kind, 0, 0, NULL, NULL, 0)",
    ] {
        let own = file.open();
        own.execute_batch(&format!(
            "CREATE TRIGGER forge AFTER INSERT ON semel_outbox BEGIN {does}; END"
        ))
        .unwrap();
        let outbox = file.store.outbox();
        let written = file.store.write(move |connection| {
            let published = outbox.publish(connection, &event("two"));
            is_denied(published.map_err(Into::into));
            is_denied(connection.execute_batch("DELETE FROM semel_outbox"));
            Ok::<_, rusqlite::Error>(())
        });
        written.await.unwrap();
        own.execute_batch("DROP TRIGGER forge").unwrap();
    }
    assert_eq!(waiting(&file).await.len(), 1);
}

/// Delivers a message to the ledger; its effect is a row.
async fn deliver(file: &File, message: &'static str) -> Once<u32> {
    let inbox = file.store.inbox(Inbox::REMEMBER);
    let delivered = file.store.write(move |connection| {
        inbox.once(connection, "ledger", message, |connection| {
            insert(connection, message)?;
            Ok::<_, rusqlite::Error>(7)
        })
    });
    delivered.await.unwrap()
}

#[tokio::test]
async fn a_message_delivered_twice_takes_effect_once() {
    let file = File::new().await;
    assert_eq!(deliver(&file, "m1").await, Once::Done(7));
    assert_eq!(deliver(&file, "m1").await, Once::Again);
    assert_eq!(deliver(&file, "m2").await, Once::Done(7));
    assert_eq!(file.rows(), ["m1", "m2"]);
    // Another consumer has its own effect, also in the same transaction and in that of the first.
    let inbox = file.store.inbox(Inbox::REMEMBER);
    let nested = file.store.write(move |connection| {
        inbox.once(connection, "receipts", "m1", |connection| {
            insert(connection, "receipt")?;
            let never = |_: &Connection| Ok::<_, rusqlite::Error>(());
            let again = || inbox.once(connection, "receipts", "m1", never);
            assert_eq!(again()?, Once::Again);
            inbox.once(connection, "audit", "m1", |connection| {
                insert(connection, "audit")
            })
        })
    });
    let nested: Once<Once<()>> = nested.await.unwrap();
    assert_eq!(nested, Once::Done(Once::Done(())));
    assert_eq!(file.rows(), ["m1", "m2", "receipt", "audit"]);
}

/// `forget_messages` removes a marker after its retention; a marker is never parked.
#[tokio::test]
async fn a_marker_is_kept_until_its_retention_ends() {
    let file = File::new().await;
    assert_eq!(deliver(&file, "m1").await, Once::Done(7));
    let tick = Duration::from_micros(1);
    file.clock.advance(Inbox::REMEMBER.saturating_sub(tick));
    assert_eq!(file.store.forget_messages(10).await.unwrap(), 0);
    let backoff = semel_core::Backoff {
        every: tick,
        max_every: tick,
    };
    assert_eq!(file.store.claim_parked(backoff, 10).await.unwrap(), []);
    assert_eq!(deliver(&file, "m1").await, Once::Again);
    file.clock.advance(tick);
    assert_eq!(file.store.forget_messages(10).await.unwrap(), 1);
    assert_eq!(deliver(&file, "m1").await, Once::Done(7));
}

/// How an effect may fail, each after a row and an event were written.
#[derive(Clone, Copy, Debug)]
enum Fails {
    ByError,
    ByPanic,
    InItsOwnSavepoint,
}

#[tokio::test]
async fn a_failed_effect_leaves_no_marker() {
    let file = File::new().await;
    for fails in [Fails::ByError, Fails::ByPanic, Fails::InItsOwnSavepoint] {
        for goes_on in [true, false] {
            let (outbox, inbox) = (file.store.outbox(), file.store.inbox(Inbox::REMEMBER));
            let written = file.store.write(move |connection| {
                insert(connection, "before")?;
                let once = || {
                    inbox.once(connection, "ledger", "m", |connection| {
                        insert(connection, "half")?;
                        outbox.publish(connection, &event("never"))?;
                        match fails {
                            Fails::ByError => {}
                            Fails::ByPanic => panic!("on purpose"),
                            Fails::InItsOwnSavepoint => {
                                connection.execute_batch("SAVEPOINT left_open")?;
                                insert(connection, "half")?;
                            }
                        }
                        Err::<(), _>(rusqlite::Error::InvalidQuery)
                    })
                };
                let failed = catch_unwind(AssertUnwindSafe(once));
                assert!(!matches!(failed, Ok(Ok(_))), "{fails:?}");
                insert(connection, "after")?;
                goes_on.then_some(()).ok_or(rusqlite::Error::InvalidQuery)
            });
            assert_eq!(written.await.is_ok(), goes_on);
            let markers = file.texts("SELECT id FROM semel_inbox");
            assert_eq!(markers, [""; 0], "{fails:?}");
        }
    }
    assert_eq!(file.rows(), ["before", "after"].repeat(3));
    assert_eq!(waiting(&file).await, []);
    // The next delivery has its effect.
    assert_eq!(deliver(&file, "m").await, Once::Done(7));
}

/// An effect that ends an outer savepoint also ends the savepoint of its marker. The store then
/// rolls everything back, whether the statements return an error or not.
#[tokio::test]
async fn an_effect_that_ends_an_outer_savepoint_rolls_everything_back() {
    let file = File::new().await;
    for ends in ["ROLLBACK TO mine", "RELEASE mine"] {
        for fails in [true, false] {
            let inbox = file.store.inbox(Inbox::REMEMBER);
            let written = file.store.write(move |connection| {
                connection.execute_batch("SAVEPOINT mine")?;
                let once = inbox.once(connection, "ledger", "m", |connection| {
                    connection.execute_batch(ends)?;
                    insert(connection, "half")?;
                    if fails {
                        return Err(rusqlite::Error::InvalidQuery);
                    }
                    Ok(())
                });
                assert!(once.is_err(), "{ends}");
                Ok::<_, rusqlite::Error>(())
            });
            assert!(matches!(written.await, Err(Error::Unavailable { .. })));
            assert_eq!(file.rows(), [""; 0], "{ends}");
            assert_eq!(file.texts("SELECT id FROM semel_inbox"), [""; 0]);
        }
    }
    assert_eq!(deliver(&file, "m").await, Once::Done(7));
}

/// Many deliveries at once, through two stores over the same file: one has its effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_of_many_concurrent_deliveries_takes_effect() {
    let file = File::new().await;
    let second = semel_sqlite::Sqlite::open(&file.path).await.unwrap();
    for round in 0..10 {
        let message = format!("m{round}");
        let deliveries: Vec<_> = (0..32)
            .map(|place| {
                let store = if place % 2 == 0 { &file.store } else { &second };
                let (store, message) = (store.clone(), message.clone());
                tokio::spawn(async move {
                    let inbox = store.inbox(Inbox::REMEMBER);
                    let delivered = store.write(move |connection| {
                        let effect = |connection: &Connection| insert(connection, &message);
                        inbox.once(connection, "ledger", &message, effect)
                    });
                    delivered.await.unwrap()
                })
            })
            .collect();
        let mut done = 0;
        for delivery in deliveries {
            match delivery.await.unwrap() {
                Once::Done(()) => done += 1,
                Once::Again => {}
            }
        }
        assert_eq!(done, 1, "{round}");
    }
    assert_eq!(file.rows().len(), 10);
}
