//! Events and markers are written with the application's own statements, or not at all.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code says what is wrong by panicking"
)]

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rusqlite::Connection;
use semel_core::inbox::{Inbox as _, Once};
use semel_core::outbox::{Event, EventId};
use semel_core::{Error, Outbox as _};
use semel_sqlite::{Inbox, Unwritten};
use support::{File, insert};

fn event(word: &str) -> Event {
    Event::new("payment.created", "payment/1", word.to_owned()).unwrap()
}

/// The events that a relay would be handed.
async fn waiting(file: &File) -> Vec<EventId> {
    let claimed = file
        .store
        .claim_events("relay".into(), Duration::from_secs(1), 100);
    let claimed = claimed.await.unwrap();
    claimed.iter().map(|waiting| waiting.event.id).collect()
}

#[tokio::test]
async fn an_event_is_there_with_its_rows() {
    let file = File::new().await;
    let (outbox, created) = (file.store.outbox(), event("created"));
    let id = created.id;
    let written = file.store.write(move |connection| {
        insert(connection, "paid")?;
        outbox.publish(connection, &created)?;
        // Once more is the same one.
        outbox.publish(connection, &created)
    });
    written.await.unwrap();
    assert_eq!(file.rows(), ["paid"]);
    assert_eq!(waiting(&file).await, [id]);
}

/// Whatever takes the statements back takes the event along.
#[tokio::test]
async fn an_event_goes_with_its_statements() {
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
    // By a savepoint of the application's own, the rest stays.
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

/// An event on any other connection would be there without what it tells of.
#[tokio::test]
async fn nothing_is_written_anywhere_else() {
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
    // Inside of another store's statements: the event would be in a file that nobody relays.
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
async fn what_cannot_be_told_or_sent_is_refused() {
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

/// The way for Semel's own statement is open for nobody else: not before it, not after it, not
/// where it fails, not for a copy of its text, and not for triggers.
#[tokio::test]
async fn only_the_event_itself_is_let_through() {
    let file = File::new().await;
    let text = include_str!("../queries/publish.sql");
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
        // A trigger on a table of its own is the application's.
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

    // On Semel's own table only a connection of the application's own can put one.
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
async fn a_message_has_its_effect_once() {
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

/// It is forgotten by the same call as all messages, not before its time, and is never parked.
#[tokio::test]
async fn a_marker_is_remembered_for_its_time() {
    let file = File::new().await;
    assert_eq!(deliver(&file, "m1").await, Once::Done(7));
    let tick = Duration::from_micros(1);
    file.clock.advance(Inbox::REMEMBER.saturating_sub(tick));
    assert_eq!(file.store.forget(10).await.unwrap(), 0);
    let backoff = semel_core::Backoff {
        every: tick,
        max_every: tick,
    };
    assert_eq!(file.store.claim_parked(backoff, 10).await.unwrap(), []);
    assert_eq!(deliver(&file, "m1").await, Once::Again);
    file.clock.advance(tick);
    assert_eq!(file.store.forget(10).await.unwrap(), 1);
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

/// An effect that ends a savepoint around its own has taken its marker out of Semel's hands. Then
/// nothing of the whole stays, whatever the statements make of it.
#[tokio::test]
async fn a_marker_is_not_parted_from_its_effect() {
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
async fn of_many_deliveries_at_once_one_has_its_effect() {
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
