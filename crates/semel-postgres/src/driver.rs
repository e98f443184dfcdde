//! What a server says besides the answers to statements: notices and notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::StreamExt as _;
use tokio::sync::mpsc::UnboundedSender;
use tokio_postgres::error::{DbError, Severity};
use tokio_postgres::{AsyncMessage, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Drives a connection.
type Driver =
    Connection<Socket, <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream>;

/// Drives a connection until it ends. The callers that wait for an answer get the error.
///
/// A notice is handled before the end of its statement is passed on, so that a caller that has its
/// rows sees it.
pub(crate) async fn drive(
    mut driver: Driver,
    not_replicated: Arc<AtomicBool>,
    notifications: Option<UnboundedSender<String>>,
) {
    let mut messages = futures_util::stream::poll_fn(move |context| driver.poll_message(context));
    while let Some(Ok(message)) = messages.next().await {
        match message {
            AsyncMessage::Notice(notice) if ends_wait_for_standby(&notice) => {
                tracing::error!(
                    "PostgreSQL committed without its standby: {}",
                    notice.message()
                );
                not_replicated.store(true, Ordering::SeqCst);
            }
            AsyncMessage::Notification(note) => {
                let is_heard = notifications
                    .as_ref()
                    .is_none_or(|listener| listener.send(note.payload().to_owned()).is_ok());
                if !is_heard {
                    return;
                }
            }
            AsyncMessage::Notice(_) | _ => {}
        }
    }
}

/// Whether a warning says that a commit did not wait for its standby. The message may be translated;
/// the place in the server's source is not.
fn ends_wait_for_standby(notice: &DbError) -> bool {
    notice.parsed_severity() == Some(Severity::Warning)
        && (notice.routine() == Some("SyncRepWaitForLSN")
            || notice.file() == Some("syncrep.c")
            || notice.message().contains("synchronous replication"))
}
