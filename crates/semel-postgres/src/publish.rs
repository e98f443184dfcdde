//! Events that go out: the application's side.

use semel_core::outbox::Event;

use crate::within::says::Call;
use crate::within::{InTransaction, Unwritten};

/// Writes events in transactions of the application's: what happened and the event that tells of it
/// are there together, or neither is.
///
/// ```no_run
/// # async fn demo(client: std::sync::Arc<tokio_postgres::Client>) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::outbox::Event;
/// use semel_postgres::{Outbox, transaction::Begun};
///
/// let mut tx = Begun::begin(client).await?;
/// tx.execute("INSERT INTO payments VALUES ('pay_789')", &[]).await?;
/// let created = Event::new("payment.created", "payment/pay_789", r#"{"amount": 1000}"#)?;
/// Outbox.publish(&mut tx, &created).await?;
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Outbox;

impl Outbox {
    /// Writes an event. One that is written again while it waits is there once.
    ///
    /// Events of one aggregate are published in the order in which their transactions commit. For
    /// that a second transaction with an event of the same aggregate waits here for the first to
    /// end. One that publishes for several aggregates should do so in one order everywhere, such
    /// as that of their names: of two that do it crosswise PostgreSQL rolls one back.
    ///
    /// # Errors
    /// See [`Unwritten`]. The transaction should be rolled back.
    ///
    /// # Cancellation
    /// Dropping the future may leave the event in the transaction.
    pub async fn publish(
        self,
        transaction: &mut impl InTransaction,
        event: &Event,
    ) -> Result<(), Unwritten> {
        event.check()?;
        let written = transaction.call(Call::Publish(event)).await;
        written.map(drop).map_err(Unwritten::Database)
    }
}
