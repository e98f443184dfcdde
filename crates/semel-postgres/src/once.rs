//! The effect of a message, once.

use std::time::Duration;

use semel_core::inbox::{MAX_NAME_BYTES, Once, REMEMBER};
use semel_core::store::Source;
use semel_core::time::micros;

use crate::within::driver::Call;
use crate::within::{InTransaction, Unwritten};

/// Runs an effect once per message, however often the message is delivered: the effect and its
/// marker commit together.
///
/// ```no_run
/// # async fn demo(client: std::sync::Arc<tokio_postgres::Client>, message_id: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use semel_core::inbox::Once;
/// use semel_postgres::{Inbox, transaction::OpenTransaction};
///
/// let inbox = Inbox::default();
/// let mut tx = OpenTransaction::begin(client).await?;
/// let once = inbox
///     .once(&mut tx, "ledger", message_id, async |tx| {
///         tx.execute("INSERT INTO ledger VALUES ('pay_789', 1000)", &[]).await?;
///         Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
///     })
///     .await?;
/// tx.commit().await?;
/// // Only now may the message be acknowledged.
/// if once == Once::Again {
///     println!("delivered again");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Inbox {
    remember: Duration,
}

/// Markers are kept for 14 days.
impl Default for Inbox {
    fn default() -> Self {
        Self::new(REMEMBER)
    }
}

impl Inbox {
    /// Keeps the marker of a message for `remember`: longer than its broker may deliver it again.
    pub fn new(remember: Duration) -> Self {
        Self { remember }
    }

    /// Runs `effect` unless this consumer handled the message before. Waits for another transaction
    /// that is handling it.
    ///
    /// Where the effect fails, its writes and the marker are rolled back, and the rest of the
    /// transaction stays; it may be committed or rolled back afterwards.
    ///
    /// In a spawned task a consumer with sqlx wraps its transaction in `Sqlx`, whose type has no
    /// lifetime: otherwise the compiler does not see that the future is `Send`.
    ///
    /// # Errors
    /// The effect's error, or [`Unwritten`]. The message was not handled: let the broker deliver it
    /// again.
    ///
    /// # Cancellation
    /// Dropping the future rolls back the effect and the marker, unless both are finished. Drop the
    /// transaction as well: sqlx may take the end of a savepoint for that of the transaction.
    pub async fn once<X, T, E>(
        &self,
        transaction: &mut X,
        consumer: &str,
        message_id: &str,
        effect: impl AsyncFnOnce(&mut X) -> Result<T, E>,
    ) -> Result<Once<T>, E>
    where
        X: InTransaction,
        E: From<Unwritten>,
    {
        let mark = Call::Once {
            consumer: check_name("consumer", consumer)?,
            message_id: check_name("message", message_id)?,
            // With 0 the marker would be gone at once, and the effect would run twice.
            remember_us: micros(self.remember).max(1),
        };
        let saved = transaction.savepoint().await;
        saved.map_err(Unwritten::Database)?;
        let open = OpenSavepoint {
            transaction,
            over: false,
        };
        let is_new = open.transaction.call(mark).await;
        let once = if is_new.map_err(Unwritten::Database)? {
            Once::Done(effect(&mut *open.transaction).await?)
        } else {
            Once::Again
        };
        open.release().await.map_err(Unwritten::Database)?;
        Ok(once)
    }
}

/// An open savepoint. Dropping it rolls back.
struct OpenSavepoint<'t, X: InTransaction> {
    transaction: &'t mut X,
    over: bool,
}

impl<X: InTransaction> OpenSavepoint<'_, X> {
    /// Fails where a statement of the effect failed and the effect ignored that.
    async fn release(mut self) -> Result<(), Source> {
        // A future that is dropped from here on leaves both the effect and its marker.
        self.over = true;
        let released = self.transaction.release().await;
        self.over = released.is_ok();
        released
    }
}

impl<X: InTransaction> Drop for OpenSavepoint<'_, X> {
    fn drop(&mut self) {
        if !self.over {
            self.transaction.roll_back();
        }
    }
}

fn check_name<'a>(what: &'static str, name: &'a str) -> Result<&'a str, Unwritten> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains('\0') {
        Ok(name)
    } else {
        Err(Unwritten::Name(what))
    }
}
