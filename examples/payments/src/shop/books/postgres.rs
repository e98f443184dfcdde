//! The books in PostgreSQL, in the database in which Semel keeps its records.
//!
//! A phase writes in a transaction of this connection or that, and hands it over open.

mod pool;

use semel::outbox::Outbox as _;
use semel::{OperationId, Postgres, postgres};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

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
use pool::Pool;

pub(crate) struct InPostgres {
    store: Postgres,
    pool: Pool,
    inbox: postgres::Inbox,
}

/// Opens the books in the store's own database.
pub(crate) async fn open(store: Postgres, url: &str) -> Result<InPostgres, Error> {
    let pool = Pool::new(url);
    let client = pool.lend().await.map_err(Error::open)?;
    for statement in CREATE {
        client.batch_execute(statement).await.map_err(Error::open)?;
    }
    drop(client);
    Ok(InPostgres {
        store,
        pool,
        inbox: postgres::Inbox::default(),
    })
}

impl Books for InPostgres {
    fn open_payment(&self, operation: OperationId, order: Order) -> Writing<Opened> {
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
            let opened = opened(&id, &order, holder)?;
            Ok((tx, opened).into())
        })
    }

    fn settle_payment(&self, payment: Payment, charge: Charge) -> Writing<Settled> {
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
            Ok((tx, Settled(settled)).into())
        })
    }

    fn open_refund(&self, operation: OperationId, order: RefundOrder) -> Writing<RefundOpened> {
        let pool = self.pool.clone();
        Box::pin(async move {
            let tx = pool.begin().await?;
            let RefundOrder {
                account,
                payment_id,
                amount,
            } = &order;
            let Some(payment) = find(&tx, TAKE_BACK, &[amount, payment_id, account]).await? else {
                let payment = find(&tx, FIND_PAYMENT, &[payment_id, account]).await?;
                return Ok((tx, RefundOpened::Refused(no_refund(payment))).into());
            };
            let refund = opened_refund(refund_id(operation), *amount, payment)?;
            tx.execute(OPEN_REFUND, &[&refund.id, payment_id, amount])
                .await?;
            Ok((tx, RefundOpened::Refund(refund)).into())
        })
    }

    fn settle_refund(&self, mut refund: Refund, made: provider::Refund) -> Writing<RefundSettled> {
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
                tx.execute(GIVE_BACK, &[&refund.amount, &refund.payment_id])
                    .await?;
            }
            refund.provider_refund_id = Some(made.id);
            Ok((tx, RefundSettled(refund)).into())
        })
    }

    fn enter(&self, message_id: String, entry: Entry) -> Doing<()> {
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
                    tx.execute(ENTER, &[about, payment_id, amount, currency])
                        .await?;
                    Ok::<_, Failed>(())
                })
                .await?;
            Ok(tx.commit().await?)
        })
    }

    fn write_receipt(&self, message_id: String, receipt: Receipt) -> Doing<()> {
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
                    Ok::<_, Failed>(())
                })
                .await?;
            Ok(tx.commit().await?)
        })
    }

    fn find_payment(&self, id: String, account: String) -> Doing<Option<Payment>> {
        let pool = self.pool.clone();
        Box::pin(async move { find(&*pool.lend().await?, FIND_PAYMENT, &[&id, &account]).await })
    }

    fn summary(&self) -> Doing<Summary> {
        let (store, pool) = (self.store.clone(), self.pool.clone());
        Box::pin(async move {
            // In this order: what is not waiting any more is counted.
            let backlog = store.backlog().await?;
            let row = pool.lend().await?.query_one(SUMMARISE, &[]).await?;
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
) -> Result<Option<Payment>, Failed> {
    let row = client.query_opt(sql, parameters).await?;
    row.as_ref().map(payment).transpose()
}

fn payment(row: &Row) -> Result<Payment, Failed> {
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
