//! The books in a SQLite file, the one in which Semel keeps its records.
//!
//! Transactions run on the store's writing thread, so they must be short.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use semel::{OperationId, Sqlite, sqlite};

use super::queries::{
    ADD_LEDGER_ENTRY, CREATE, FIND_BY_REFERENCE, FIND_PAYMENT, OPEN_PAYMENT, OPEN_REFUND,
    RELEASE_REFUND, RESERVE_REFUND, SETTLE_PAYMENT, SETTLE_REFUND, SUMMARISE, WRITE_RECEIPT,
};
use super::{
    Books, BooksError, BooksFuture, Entry, OpenPaymentResult, OpenRefundResult, Payment,
    PhaseFuture, Receipt, Refund, SettledPayment, SettledRefund, Status, Summary, new_refund,
    open_payment_result, payment_id, refund_id, refund_refusal,
};
use crate::Error;
use crate::provider::{self, Charge};
use crate::shop::events;
use crate::shop::pay::Order;
use crate::shop::refund::RefundOrder;
use semel::Store as _;

/// How long another connection may hold the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct SqliteBooks {
    store: Sqlite,
    outbox: sqlite::Outbox,
    inbox: sqlite::Inbox,
    /// Not a connection of the store.
    reader: Arc<Mutex<Connection>>,
}

/// Opens the books in the store's own file.
pub(crate) async fn open(store: Sqlite, path: &Path) -> Result<SqliteBooks, Error> {
    let path = path.to_owned();
    let open = move || {
        let connection = Connection::open(path)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        for statement in CREATE {
            connection.execute(statement, [])?;
        }
        Ok::<_, rusqlite::Error>(connection)
    };
    let reader = tokio::task::spawn_blocking(open).await??;
    Ok(SqliteBooks {
        outbox: store.outbox(),
        inbox: store.inbox(sqlite::Inbox::REMEMBER),
        reader: Arc::new(Mutex::new(reader)),
        store,
    })
}

impl SqliteBooks {
    /// Runs the statements as part of a phase.
    fn phase<T: Send + 'static>(
        &self,
        statements: impl FnOnce(&Connection) -> Result<T, BooksError> + Send + 'static,
    ) -> PhaseFuture<T> {
        let work = self.store.work(statements);
        Box::pin(async { Ok(work) })
    }

    /// Runs the statements once for each message.
    fn once(
        &self,
        consumer: &'static str,
        message_id: String,
        effect: impl FnOnce(&Connection) -> Result<(), BooksError> + Send + 'static,
    ) -> BooksFuture<()> {
        let (store, inbox) = (self.store.clone(), self.inbox.clone());
        Box::pin(async move {
            store
                .write(move |connection| inbox.once(connection, consumer, &message_id, effect))
                .await?;
            Ok(())
        })
    }

    fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Connection) -> Result<T, BooksError> + Send + 'static,
    ) -> BooksFuture<T> {
        let reader = Arc::clone(&self.reader);
        Box::pin(async move {
            let query = move || query(&reader.lock().unwrap_or_else(PoisonError::into_inner));
            tokio::task::spawn_blocking(query).await?
        })
    }
}

impl Books for SqliteBooks {
    fn open_payment(&self, operation: OperationId, order: Order) -> PhaseFuture<OpenPaymentResult> {
        self.phase(move |connection| {
            let id = payment_id(operation);
            connection.execute(
                OPEN_PAYMENT,
                params![
                    id,
                    order.account,
                    order.merchant_reference,
                    order.amount,
                    order.currency
                ],
            )?;
            let holder = find(
                connection,
                FIND_BY_REFERENCE,
                [&order.account, &order.merchant_reference],
            )?;
            open_payment_result(&id, &order, holder)
        })
    }

    fn settle_payment(&self, payment: Payment, charge: Charge) -> PhaseFuture<SettledPayment> {
        let outbox = self.outbox.clone();
        self.phase(move |connection| {
            let status = Status::from(charge.status);
            let settled = find(
                connection,
                SETTLE_PAYMENT,
                [status.as_str(), &charge.id, &payment.id],
            )?;
            let settled = settled.ok_or("the payment is settled already")?;
            if status == Status::Succeeded {
                outbox.publish(connection, &events::created(&settled)?)?;
            }
            Ok(SettledPayment(settled))
        })
    }

    fn open_refund(
        &self,
        operation: OperationId,
        order: RefundOrder,
    ) -> PhaseFuture<OpenRefundResult> {
        self.phase(move |connection| {
            let RefundOrder {
                account,
                payment_id,
                amount,
            } = order;
            let room = params![amount, payment_id, account];
            let Some(payment) = find(connection, RESERVE_REFUND, room)? else {
                let payment = find(connection, FIND_PAYMENT, [payment_id, account])?;
                return Ok(OpenRefundResult::Refused(refund_refusal(payment)));
            };
            let refund = new_refund(refund_id(operation), amount, payment)?;
            connection.execute(
                OPEN_REFUND,
                params![refund.id, refund.payment_id, refund.amount],
            )?;
            Ok(OpenRefundResult::Refund(refund))
        })
    }

    fn settle_refund(
        &self,
        mut refund: Refund,
        made: provider::Refund,
    ) -> PhaseFuture<SettledRefund> {
        let outbox = self.outbox.clone();
        self.phase(move |connection| {
            refund.status = made.status.into();
            let decided = params![refund.status.as_str(), made.id, refund.id];
            if connection.execute(SETTLE_REFUND, decided)? == 0 {
                return Err("the refund is settled already".into());
            }
            if refund.status == Status::Succeeded {
                outbox.publish(connection, &events::refunded(&refund)?)?;
            } else {
                connection.execute(RELEASE_REFUND, params![refund.amount, refund.payment_id])?;
            }
            refund.provider_refund_id = Some(made.id);
            Ok(SettledRefund(refund))
        })
    }

    fn add_ledger_entry(&self, message_id: String, entry: Entry) -> BooksFuture<()> {
        self.once("ledger", message_id, move |connection| {
            let Entry {
                about,
                payment_id,
                amount,
                currency,
            } = entry;
            connection.execute(
                ADD_LEDGER_ENTRY,
                params![about, payment_id, amount, currency],
            )?;
            Ok(())
        })
    }

    fn write_receipt(&self, message_id: String, receipt: Receipt) -> BooksFuture<()> {
        self.once("receipts", message_id, move |connection| {
            let Receipt {
                payment_id,
                account,
                text,
            } = receipt;
            connection.execute(WRITE_RECEIPT, [payment_id, account, text])?;
            Ok(())
        })
    }

    fn find_payment(&self, id: String, account: String) -> BooksFuture<Option<Payment>> {
        self.read(move |connection| find(connection, FIND_PAYMENT, [id, account]))
    }

    fn summary(&self) -> BooksFuture<Summary> {
        let store = self.store.clone();
        // In this order: an event that is no longer in the backlog has had its effect.
        let counted = self.read(|connection| Ok(connection.query_row(SUMMARISE, [], counted)?));
        Box::pin(async move {
            let backlog = store.outbox_backlog().await?;
            Ok(Summary {
                events_waiting: backlog.waiting,
                events_dead: backlog.dead,
                ..counted.await?
            })
        })
    }
}

fn find(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
) -> Result<Option<Payment>, BooksError> {
    Ok(connection.query_row(sql, parameters, payment).optional()?)
}

fn payment(row: &Row<'_>) -> rusqlite::Result<Payment> {
    Ok(Payment {
        id: row.get("id")?,
        account: row.get("account")?,
        merchant_reference: row.get("merchant_reference")?,
        amount: row.get("amount")?,
        currency: row.get("currency")?,
        status: row.get("status")?,
        charge_id: row.get("charge_id")?,
        refunded: row.get("refunded")?,
    })
}

impl FromSql for Status {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Self::parse(value.as_str()?).map_err(FromSqlError::Other)
    }
}

fn counted(row: &Row<'_>) -> rusqlite::Result<Summary> {
    Ok(Summary {
        processing: row.get("processing")?,
        succeeded: row.get("succeeded")?,
        declined: row.get("declined")?,
        refunding: row.get("refunding")?,
        refunded: row.get("refunded")?,
        ledger_entries: row.get("ledger_entries")?,
        ledger_total: row.get("ledger_total")?,
        receipts: row.get("receipts")?,
        ..Summary::default()
    })
}
