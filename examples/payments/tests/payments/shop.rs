//! The shop: its responses and its books.

use payments::provider::{self, Fault, Faults};
use payments::shop::{Config, Database, Refund, Status, Summary};
use reqwest::{Response, StatusCode};
use semel_testkit::database;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{Server, client, json_of, order, post, put_faults, summary, wait_for_books};

/// A shop, its provider and its database.
struct TestShop {
    provider: Server,
    server: Server,
    _directory: Option<TempDir>,
    _database: Option<database::Database>,
}

impl TestShop {
    async fn sqlite() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let database = Database::Sqlite(directory.path().join("shop.db"));
        Self::on(database, Some(directory), None).await
    }

    /// On both databases, or on the one that needs no server.
    async fn both() -> Vec<Self> {
        let mut shops = vec![Self::sqlite().await];
        match database::Database::new().await {
            Some(database) => {
                let on = Database::Postgres(database.url.clone());
                shops.push(Self::on(on, None, Some(database)).await);
            }
            None => println!("SKIPPED on PostgreSQL: SEMEL_TEST_POSTGRES_URL is not set"),
        }
        shops
    }

    async fn on(
        database: Database,
        directory: Option<TempDir>,
        in_postgres: Option<database::Database>,
    ) -> Self {
        let provider = Server::provider(provider::Config::default()).await;
        let server = Server::shop(Config::new(&provider.url, database)).await;
        Self {
            provider,
            server,
            _directory: directory,
            _database: in_postgres,
        }
    }

    async fn ask(&self, path: &str, account: &str, key: &str, body: &Value) -> Response {
        let call = post(self.server.url(path), body).header("x-account-id", account);
        let call = call.header("idempotency-key", format!("\"{key}\""));
        call.send().await.unwrap()
    }

    async fn pay(&self, key: &str, body: &Value) -> Response {
        self.ask("/payments", "acc_1", key, body).await
    }

    async fn paid(&self, key: &str, reference: &str) -> String {
        let paid = self.pay(key, &order(reference)).await;
        assert_eq!(paid.status(), StatusCode::CREATED);
        json_of(paid).await["id"].as_str().unwrap().to_owned()
    }

    async fn refund(&self, key: &str, payment: &str, amount: i64) -> Response {
        let path = format!("/payments/{payment}/refunds");
        self.ask(&path, "acc_1", key, &json!({ "amount": amount }))
            .await
    }

    async fn until(&self, expected: Summary) {
        wait_for_books(&self.server, expected).await;
    }
}

fn replayed(response: &Response) -> bool {
    response.headers().contains_key("idempotent-replayed")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payment_has_one_charge_one_entry_and_one_receipt() {
    for shop in TestShop::both().await {
        let created = shop.pay("key-1", &order("invoice-1")).await;
        assert_eq!(created.status(), StatusCode::CREATED);
        let location = created.headers()["location"].to_str().unwrap().to_owned();
        let created = json_of(created).await;
        assert_eq!(created["status"], "succeeded");
        let again = shop.pay("key-1", &order("invoice-1")).await;
        assert!(replayed(&again));
        assert_eq!(json_of(again).await, created);

        let look = |account: &'static str| {
            let call = client().get(shop.server.url(&location));
            call.header("x-account-id", account).send()
        };
        assert_eq!(json_of(look("acc_1").await.unwrap()).await, created);
        let others = look("acc_2").await.unwrap();
        assert_eq!(others.status(), StatusCode::NOT_FOUND);
        let one = Summary {
            succeeded: 1,
            ledger_entries: 1,
            ledger_total: 1000,
            receipts: 1,
            ..Summary::default()
        };
        shop.until(one).await;
        assert_eq!(summary(&shop.provider).await.count, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reference_is_paid_once_under_any_key() {
    for shop in TestShop::both().await {
        let first = shop.paid("key-1", "invoice-1").await;
        let mut other_terms = order("invoice-1");
        other_terms["amount"] = json!(2000);
        for (key, terms) in [("key-2", order("invoice-1")), ("key-3", other_terms)] {
            let taken = shop.pay(key, &terms).await;
            assert_eq!(taken.status(), StatusCode::CONFLICT);
            assert_eq!(taken.headers()["content-type"], "application/problem+json");
            let location = format!("/payments/{first}");
            assert_eq!(taken.headers()["location"], location.as_str());
            let taken = json_of(taken).await;
            assert_eq!(taken["code"], "merchant_reference_taken");
            assert_eq!(taken["payment_id"], first.as_str());
            // The answer of its key from now on.
            let again = shop.pay(key, &terms).await;
            assert!(replayed(&again));
            assert_eq!(json_of(again).await, taken);
        }
        // Another account may have an invoice with the same number.
        let same = order("invoice-1");
        let others = shop.ask("/payments", "acc_2", "key-1", &same).await;
        assert_eq!(others.status(), StatusCode::CREATED);
        assert_eq!(summary(&shop.provider).await.count, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_keys_for_one_reference_make_one_payment() {
    for shop in TestShop::both().await {
        let orders = (0..8).map(|n| {
            let (shop, order) = (&shop, order("invoice-1"));
            async move { shop.pay(&format!("key-{n}"), &order).await.status() }
        });
        let statuses = futures_util::future::join_all(orders).await;
        let made = |status: &&StatusCode| **status == StatusCode::CREATED;
        assert_eq!(statuses.iter().filter(made).count(), 1, "{statuses:?}");
        assert_eq!(summary(&shop.provider).await.count, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decline_is_a_result_and_frees_the_reference() {
    for shop in TestShop::both().await {
        put_faults(&shop.provider, Faults::next(1, Fault::Decline)).await;
        let declined = shop.pay("key-1", &order("invoice-1")).await;
        assert_eq!(declined.status(), StatusCode::PAYMENT_REQUIRED);
        assert_eq!(json_of(declined).await["status"], "declined");
        let again = shop.pay("key-1", &order("invoice-1")).await;
        assert!(replayed(&again));
        assert_eq!(again.status(), StatusCode::PAYMENT_REQUIRED);
        // Another card.
        shop.paid("key-2", "invoice-1").await;
        let expected = Summary {
            succeeded: 1,
            declined: 1,
            ledger_entries: 1,
            ledger_total: 1000,
            receipts: 1,
            ..Summary::default()
        };
        shop.until(expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_charge_whose_answer_was_lost_is_requested_again() {
    for shop in TestShop::both().await {
        put_faults(&shop.provider, Faults::next(1, Fault::ResetAfterSuccess)).await;
        shop.paid("key-1", "invoice-1").await;
        assert_eq!(summary(&shop.provider).await.count, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_are_never_more_than_was_paid() {
    for shop in TestShop::both().await {
        let payment = shop.paid("key-1", "invoice-1").await;
        let refunds = (0..5).map(|n| {
            let (shop, payment) = (&shop, &payment);
            async move { shop.refund(&format!("refund-{n}"), payment, 300).await }
        });
        let refunds = futures_util::future::join_all(refunds).await;
        let with = |status| refunds.iter().filter(|r| r.status() == status).count();
        assert_eq!(with(StatusCode::CREATED), 3);
        assert_eq!(with(StatusCode::UNPROCESSABLE_ENTITY), 2);
        for (n, refund) in refunds.into_iter().enumerate() {
            let again = shop.refund(&format!("refund-{n}"), &payment, 300).await;
            assert!(replayed(&again));
            assert_eq!(again.status(), refund.status());
        }
        let expected = Summary {
            succeeded: 1,
            refunded: 3,
            ledger_entries: 4,
            ledger_total: 100,
            receipts: 1,
            ..Summary::default()
        };
        shop.until(expected).await;
        let ledger = summary(&shop.provider).await;
        assert_eq!((ledger.count, ledger.refunds), (1, 3));
        assert!(ledger.duplicate_refund_keys.is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_declined_refund_releases_its_amount() {
    for shop in TestShop::both().await {
        let payment = shop.paid("key-1", "invoice-1").await;
        put_faults(&shop.provider, Faults::next(1, Fault::Decline)).await;
        let declined = shop.refund("refund-1", &payment, 1000).await;
        assert_eq!(declined.status(), StatusCode::PAYMENT_REQUIRED);
        let made = shop.refund("refund-2", &payment, 1000).await;
        assert_eq!(made.status(), StatusCode::CREATED);
        let made: Refund = serde_json::from_value(json_of(made).await).unwrap();
        assert_eq!(made.status, Status::Succeeded);
        let expected = Summary {
            succeeded: 1,
            refunded: 1,
            ledger_entries: 2,
            receipts: 1,
            ..Summary::default()
        };
        shop.until(expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refund_without_a_successful_payment_is_refused() {
    let shop = TestShop::sqlite().await;
    let unknown = shop.refund("refund-1", "pay_0", 1).await;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    let payment = shop.paid("key-1", "invoice-1").await;
    let path = format!("/payments/{payment}/refunds");
    let one = json!({ "amount": 1 });
    let others = shop.ask(&path, "acc_2", "refund-2", &one).await;
    assert_eq!(others.status(), StatusCode::NOT_FOUND);
    put_faults(&shop.provider, Faults::next(1, Fault::Decline)).await;
    let declined = json_of(shop.pay("key-2", &order("invoice-2")).await).await;
    let declined = declined["id"].as_str().unwrap();
    let unpaid = shop.refund("refund-3", declined, 1).await;
    assert_eq!(unpaid.status(), StatusCode::CONFLICT);
    assert_eq!(summary(&shop.provider).await.refunds, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_invalid_request_is_refused_before_anything_happens() {
    let shop = TestShop::sqlite().await;
    let with = |name: &str, value: Value| {
        let mut body = order("invoice-1");
        body[name] = value;
        body
    };
    for (n, body) in [
        with("amount", json!(0)),
        with("amount", json!(10.5)),
        with("currency", json!("euro")),
        with("merchant_reference", json!("")),
        with("merchant_reference", Value::Null),
    ]
    .iter()
    .enumerate()
    {
        let refused = shop.pay(&format!("key-{n}"), body).await;
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY, "{body}");
    }
    let anonymous = post(shop.server.url("/payments"), &order("invoice-1"));
    let anonymous = anonymous
        .header("idempotency-key", "\"key\"")
        .send()
        .await
        .unwrap();
    assert!(anonymous.status().is_client_error());
    let keyless = post(shop.server.url("/payments"), &order("invoice-1"));
    let keyless = keyless
        .header("x-account-id", "acc_1")
        .send()
        .await
        .unwrap();
    assert_eq!(keyless.status(), StatusCode::BAD_REQUEST);
    shop.until(Summary::default()).await;
    assert_eq!(summary(&shop.provider).await.count, 0);
}
