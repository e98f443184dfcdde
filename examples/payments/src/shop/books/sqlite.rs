//! The books in a SQLite file, the one in which Semel keeps its records.
//!
//! The statements of a transaction run on the store's one writing thread: they are quick, and wait
//! for nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use semel::outbox::Outbox as _;
use semel::{OperationId, Sqlite, sqlite};

use super::queries::{
    CREATE, ENTER, FIND_BY_REFERENCE, FIND_PAYMENT, GIVE_BACK, OPEN_PAYMENT, OPEN_REFUND,
    SETTLE_PAYMENT, SETTLE_REFUND, SUMMARISE, TAKE_BACK, WRITE_RECEIPT,
};
use super::{
    Books, Doing, Entry, Failed, Opened, Payment, Receipt, Refund, RefundOpened, RefundSettled,
    Settled, Status, Summary, Writing, no_refund, opened, opened_refund, payment_id, refund_id,
};
use crate::Error;
use crate::provider::{self, Charge};
use crate::shop::events;
use crate::shop::pay::Order;
use crate::shop::refund::RefundOrder;

/// How long another connection may hold the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct InSqlite {
    store: Sqlite,
    outbox: sqlite::Outbox,
    inbox: sqlite::Inbox,
    /// Reading is done beside the store's own connections.
    reader: Arc<Mutex<Connection>>,
}

/// Opens the books in the store's own file.
pub(crate) async fn open(store: Sqlite, path: &Path) -> Result<InSqlite, Error> {
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
    Ok(InSqlite {
        outbox: store.outbox(),
        inbox: store.inbox(sqlite::Inbox::REMEMBER),
        reader: Arc::new(Mutex::new(reader)),
        store,
    })
}

impl InSqlite {
    /// Statements that become part of a phase.
    fn phase<T: Send + 'static>(
        &self,
        statements: impl FnOnce(&Connection) -> Result<T, Failed> + Send + 'static,
    ) -> Writing<T> {
        let work = self.store.work(statements);
        Box::pin(async { Ok(work) })
    }

    /// Statements that a message has as its effect.
    fn once(
        &self,
        consumer: &'static str,
        message_id: String,
        effect: impl FnOnce(&Connection) -> Result<(), Failed> + Send + 'static,
    ) -> Doing<()> {
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
        look: impl FnOnce(&Connection) -> Result<T, Failed> + Send + 'static,
    ) -> Doing<T> {
        let reader = Arc::clone(&self.reader);
        Box::pin(async move {
            let look = move || look(&reader.lock().unwrap_or_else(PoisonError::into_inner));
            tokio::task::spawn_blocking(look).await?
        })
    }
}

impl Books for InSqlite {
    fn open_payment(&self, operation: OperationId, order: Order) -> Writing<Opened> {
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
            opened(&id, &order, holder)
        })
    }

    fn settle_payment(&self, payment: Payment, charge: Charge) -> Writing<Settled> {
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
            Ok(Settled(settled))
        })
    }

    fn open_refund(&self, operation: OperationId, order: RefundOrder) -> Writing<RefundOpened> {
        self.phase(move |connection| {
            let RefundOrder {
                account,
                payment_id,
                amount,
            } = order;
            let room = params![amount, payment_id, account];
            let Some(payment) = find(connection, TAKE_BACK, room)? else {
                let payment = find(connection, FIND_PAYMENT, [payment_id, account])?;
                return Ok(RefundOpened::Refused(no_refund(payment)));
            };
            let refund = opened_refund(refund_id(operation), amount, payment)?;
            connection.execute(
                OPEN_REFUND,
                params![refund.id, refund.payment_id, refund.amount],
            )?;
            Ok(RefundOpened::Refund(refund))
        })
    }

    fn settle_refund(&self, mut refund: Refund, made: provider::Refund) -> Writing<RefundSettled> {
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
                connection.execute(GIVE_BACK, params![refund.amount, refund.payment_id])?;
            }
            refund.provider_refund_id = Some(made.id);
            Ok(RefundSettled(refund))
        })
    }

    fn enter(&self, message_id: String, entry: Entry) -> Doing<()> {
        self.once("ledger", message_id, move |connection| {
            let Entry {
                about,
                payment_id,
                amount,
                currency,
            } = entry;
            connection.execute(ENTER, params![about, payment_id, amount, currency])?;
            Ok(())
        })
    }

    fn write_receipt(&self, message_id: String, receipt: Receipt) -> Doing<()> {
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

    fn find_payment(&self, id: String, account: String) -> Doing<Option<Payment>> {
        self.read(move |connection| find(connection, FIND_PAYMENT, [id, account]))
    }

    fn summary(&self) -> Doing<Summary> {
        let store = self.store.clone();
        // In this order: what is not waiting any more has been counted.
        let counted = self.read(|connection| Ok(connection.query_row(SUMMARISE, [], counted)?));
        Box::pin(async move {
            let backlog = store.backlog().await?;
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
) -> Result<Option<Payment>, Failed> {
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
        let word = value.as_str()?;
        Self::parse(word).map_err(FromSqlError::Other)
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
