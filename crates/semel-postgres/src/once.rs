//! Effects of messages, once each.

use std::time::Duration;

use semel_core::inbox::{MAX_NAME_BYTES, Once, REMEMBER};
use semel_core::store::Source;
use semel_core::time::micros;

use crate::within::says::Call;
use crate::within::{InTransaction, Unwritten};

/// Makes an effect happen once for each message, however often that is delivered: the effect and
/// the marker that says so commit together.
///
/// ```no_run
/// # async fn demo(client: std::sync::Arc<tokio_postgres::Client>, message_id: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// use semel_core::inbox::Once;
/// use semel_postgres::{Inbox, transaction::Begun};
///
/// let inbox = Inbox::default();
/// let mut tx = Begun::begin(client).await?;
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
    /// Remembers each message for so long: longer than its broker may deliver it again.
    pub fn new(remember: Duration) -> Self {
        Self { remember }
    }

    /// Runs `effect` unless the message of that name had its effect by that consumer before. Where
    /// another transaction is about to have it, that one is waited for.
    ///
    /// Where the effect fails, what it wrote is undone, with the marker, and the rest of the
    /// transaction stands; so it makes no difference whether that is committed afterwards.
    ///
    /// In a task of its own a consumer with sqlx wraps its transaction in `Sqlx`, whose type has no
    /// lifetime: of one that has, the compiler does not see that it can be sent.
    ///
    /// # Errors
    /// The effect's own, or [`Unwritten`]. The message was not dealt with, and is to be delivered
    /// again.
    ///
    /// # Cancellation
    /// Dropping the future undoes the effect and the marker, unless both were finished. Drop the
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
            consumer: fits("consumer", consumer)?,
            message_id: fits("message", message_id)?,
            // Whoever remembers for no time would act twice.
            remember_us: micros(self.remember).max(1),
        };
        let saved = transaction.savepoint().await;
        saved.map_err(Unwritten::Database)?;
        let open = Open {
            transaction,
            over: false,
        };
        let is_new = open.transaction.call(mark).await;
        let once = if is_new.map_err(Unwritten::Database)? {
            Once::Done(effect(&mut *open.transaction).await?)
        } else {
            Once::Again
        };
        open.keep().await.map_err(Unwritten::Database)?;
        Ok(once)
    }
}

/// What can still be undone, and is, unless it is kept.
struct Open<'t, X: InTransaction> {
    transaction: &'t mut X,
    over: bool,
}

impl<X: InTransaction> Open<'_, X> {
    /// Fails where a statement of the effect failed and the effect did not say so.
    async fn keep(mut self) -> Result<(), Source> {
        // Whoever is dropped from here on has both in the transaction, the effect and its marker.
        self.over = true;
        let kept = self.transaction.keep().await;
        self.over = kept.is_ok();
        kept
    }
}

impl<X: InTransaction> Drop for Open<'_, X> {
    fn drop(&mut self) {
        if !self.over {
            self.transaction.undo();
        }
    }
}

fn fits<'a>(what: &'static str, name: &'a str) -> Result<&'a str, Unwritten> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && !name.contains('\0') {
        Ok(name)
    } else {
        Err(Unwritten::Name(what))
    }
}
