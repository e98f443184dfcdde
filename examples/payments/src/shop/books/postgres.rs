//! The books in PostgreSQL, in the database in which Semel keeps its records.
//!
//! A phase writes in a transaction on a pooled connection, and returns it open.

mod pool;

use semel::{OperationId, Postgres, postgres};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

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
use pool::Pool;
use semel::Store as _;

pub(crate) struct PostgresBooks {
    store: Postgres,
    pool: Pool,
    inbox: postgres::Inbox,
}

/// Opens the books in the store's own database.
pub(crate) async fn open(store: Postgres, url: &str) -> Result<PostgresBooks, Error> {
    let pool = Pool::new(url);
    let client = pool.get().await.map_err(Error::open)?;
    for statement in CREATE {
        client.batch_execute(statement).await.map_err(Error::open)?;
    }
    drop(client);
    Ok(PostgresBooks {
        store,
        pool,
        inbox: postgres::Inbox::default(),
    })
}

impl Books for PostgresBooks {
    fn open_payment(&self, operation: OperationId, order: Order) -> PhaseFuture<OpenPaymentResult> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let tx = pool.begin().await?;
            let id = payment_id(operation);
            let Order {
                account,
                merchant_reference,
                amount,
                currency,
            } = &order;
            tx.execute(
                OPEN_PAYMENT,
                &[&id, account, merchant_reference, amount, currency],
            )
            .await?;
            let holder = find(&tx, FIND_BY_REFERENCE, &[account, merchant_reference]).await?;
            let open_payment_result = open_payment_result(&id, &order, holder)?;
            Ok((tx, open_payment_result).into())
        })
    }

    fn settle_payment(&self, payment: Payment, charge: Charge) -> PhaseFuture<SettledPayment> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let mut tx = pool.begin().await?;
            let status = Status::from(charge.status);
            let decided: Parameters<'_> = &[&status.as_str(), &charge.id, &payment.id];
            let settled = find(&tx, SETTLE_PAYMENT, decided).await?;
            let settled = settled.ok_or("the payment is settled already")?;
            if status == Status::Succeeded {
                let event = events::created(&settled)?;
                postgres::Outbox.publish(&mut tx, &event).await?;
            }
            Ok((tx, SettledPayment(settled)).into())
        })
    }

    fn open_refund(
        &self,
        operation: OperationId,
        order: RefundOrder,
    ) -> PhaseFuture<OpenRefundResult> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let tx = pool.begin().await?;
            let RefundOrder {
                account,
                payment_id,
                amount,
            } = &order;
            let Some(payment) = find(&tx, RESERVE_REFUND, &[amount, payment_id, account]).await?
            else {
                let payment = find(&tx, FIND_PAYMENT, &[payment_id, account]).await?;
                return Ok((tx, OpenRefundResult::Refused(refund_refusal(payment))).into());
            };
            let refund = new_refund(refund_id(operation), *amount, payment)?;
            tx.execute(OPEN_REFUND, &[&refund.id, payment_id, amount])
                .await?;
            Ok((tx, OpenRefundResult::Refund(refund)).into())
        })
    }

    fn settle_refund(
        &self,
        mut refund: Refund,
        made: provider::Refund,
    ) -> PhaseFuture<SettledRefund> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let mut tx = pool.begin().await?;
            refund.status = made.status.into();
            let decided: Parameters<'_> = &[&refund.status.as_str(), &made.id, &refund.id];
            if tx.execute(SETTLE_REFUND, decided).await? == 0 {
                return Err("the refund is settled already".into());
            }
            if refund.status == Status::Succeeded {
                let event = events::refunded(&refund)?;
                postgres::Outbox.publish(&mut tx, &event).await?;
            } else {
                tx.execute(RELEASE_REFUND, &[&refund.amount, &refund.payment_id])
                    .await?;
            }
            refund.provider_refund_id = Some(made.id);
            Ok((tx, SettledRefund(refund)).into())
        })
    }

    fn add_ledger_entry(&self, message_id: String, entry: Entry) -> BooksFuture<()> {
        let (pool, inbox) = (self.pool.clone(), self.inbox);
        Box::pin(async move {
            let Entry {
                about,
                payment_id,
                amount,
                currency,
            } = &entry;
            let mut tx = pool.begin().await?;
            inbox
                .once(&mut tx, "ledger", &message_id, async |tx| {
                    tx.execute(ADD_LEDGER_ENTRY, &[about, payment_id, amount, currency])
                        .await?;
                    Ok::<_, BooksError>(())
                })
                .await?;
            Ok(tx.commit().await?)
        })
    }

    fn write_receipt(&self, message_id: String, receipt: Receipt) -> BooksFuture<()> {
        let (pool, inbox) = (self.pool.clone(), self.inbox);
        Box::pin(async move {
            let Receipt {
                payment_id,
                account,
                text,
            } = &receipt;
            let mut tx = pool.begin().await?;
            inbox
                .once(&mut tx, "receipts", &message_id, async |tx| {
                    tx.execute(WRITE_RECEIPT, &[payment_id, account, text])
                        .await?;
                    Ok::<_, BooksError>(())
                })
                .await?;
            Ok(tx.commit().await?)
        })
    }

    fn find_payment(&self, id: String, account: String) -> BooksFuture<Option<Payment>> {
        let pool = self.pool.clone();
        Box::pin(async move { find(&*pool.get().await?, FIND_PAYMENT, &[&id, &account]).await })
    }

    fn summary(&self) -> BooksFuture<Summary> {
        let (store, pool) = (self.store.clone(), self.pool.clone());
        Box::pin(async move {
            // In this order: an event that is no longer in the backlog has had its effect.
            let backlog = store.outbox_backlog().await?;
            let row = pool.get().await?.query_one(SUMMARISE, &[]).await?;
            Ok(Summary {
                processing: row.try_get("processing")?,
                succeeded: row.try_get("succeeded")?,
                declined: row.try_get("declined")?,
                refunding: row.try_get("refunding")?,
                refunded: row.try_get("refunded")?,
                ledger_entries: row.try_get("ledger_entries")?,
                ledger_total: row.try_get("ledger_total")?,
                receipts: row.try_get("receipts")?,
                events_waiting: backlog.waiting,
                events_dead: backlog.dead,
            })
        })
    }
}

type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

async fn find(
    client: &tokio_postgres::Client,
    sql: &str,
    parameters: Parameters<'_>,
) -> Result<Option<Payment>, BooksError> {
    let row = client.query_opt(sql, parameters).await?;
    row.as_ref().map(payment).transpose()
}

fn payment(row: &Row) -> Result<Payment, BooksError> {
    Ok(Payment {
        id: row.try_get("id")?,
        account: row.try_get("account")?,
        merchant_reference: row.try_get("merchant_reference")?,
        amount: row.try_get("amount")?,
        currency: row.try_get("currency")?,
        status: Status::parse(row.try_get("status")?)?,
        charge_id: row.try_get("charge_id")?,
        refunded: row.try_get("refunded")?,
    })
}
