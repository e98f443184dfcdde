//! The outbox: publishing an event in an application's transaction.

use semel_core::outbox::Event;

use crate::within::driver::Call;
use crate::within::{InTransaction, Unwritten};

/// Writes events in the application's transactions: a change and its event commit together, or
/// neither does.
///
/// ```no_run
/// # async fn demo(client: std::sync::Arc<tokio_postgres::Client>) -> Result<(), Box<dyn std::error::Error>> {
/// use semel_core::outbox::Event;
/// use semel_postgres::{Outbox, transaction::OpenTransaction};
///
/// let mut tx = OpenTransaction::begin(client).await?;
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
    /// Writes an event. Writing it again while it waits has no effect.
    ///
    /// Events of one aggregate are published in the order in which their transactions commit. For
    /// that, a second transaction with an event of the same aggregate waits here for the first to
    /// end. A transaction that publishes for several aggregates should do so in one order
    /// everywhere, such as by name: otherwise two of them may deadlock, and PostgreSQL rolls one
    /// back.
    ///
    /// # Errors
    /// See [`Unwritten`]. Roll the transaction back.
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
