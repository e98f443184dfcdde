//! Keys and callers, as the gateway process handles them: hashed keys, weak keys, tokens.

use std::process::Command;

use rustix::process::Signal;
use tokio::task::block_in_place;

use crate::support::http::{ask, get, request};
use crate::support::shop::Shop;
use crate::support::{Gateway, GatewayDirectory};

const ROUTE: &str = "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n";
const KEY: &str = "8e03978e-40d5-43dd-bc93-6894a57f9324";
const BODY: &str = "{\"reference\":\"order-1\",\"amount\":100}";

#[tokio::test(flavor = "multi_thread")]
async fn a_hashed_key_is_found_by_search_and_is_not_in_the_database() {
    let shop = Shop::open().await;
    let hashed = "key_storage = \"hashed\"\nkey_hash_env = \"KEY_HASH\"\n";
    let gateway_dir = GatewayDirectory::new(&format!("{hashed}{ROUTE}"));
    let mut command = gateway_dir.command(&shop.url());
    command.env("KEY_HASH", "0123456789abcdef0123456789abcdef");
    let gateway = block_in_place(|| Gateway::start(command));
    for replayed in [None, Some("true")] {
        let answer = ask(gateway.address, &request("/payments", KEY, BODY)).await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 201, "{}", answer.text());
        assert_eq!(answer.header("idempotent-replayed"), replayed);
    }
    // A reload does not change how keys are stored: the records would not be found.
    gateway_dir.configure(ROUTE);
    gateway.signal(Signal::HUP);
    gateway.wait_for_log("configuration reloaded").await;
    gateway.wait_for_log("key_storage").await;
    let again = ask(gateway.address, &request("/payments", KEY, BODY)).await;
    assert!(again.unwrap().is_replay());
    let admin = format!("--admin=http://{}", gateway.admin);
    let list = |key: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.args(["operations", "list", "--json", &admin, "--key", key]);
        let output = block_in_place(|| command.env_clear().output().unwrap());
        String::from_utf8(output.stdout).unwrap()
    };
    let found = list(KEY);
    assert!(
        found.contains("\"hmac-sha256:") && !found.contains(KEY),
        "{found}"
    );
    assert!(!list("another").contains("hmac-sha256:"));
    gateway.kill();
    for file in ["semel.db", "semel.db-wal"] {
        let bytes = std::fs::read(gateway_dir.path(file)).unwrap_or_default();
        let contains = |text: &str| {
            bytes
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        };
        assert!(!contains(KEY), "{file} contains the clear key");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weak_keys_are_counted_and_a_short_retention_is_logged() {
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(&format!("{ROUTE}retention = \"30m\"\n"));
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    gateway
        .wait_for_log("route \"POST /payments\": `retention` is 30m")
        .await;
    for key in ["1763430000", "1763430000", "alice@example.com", KEY] {
        let answer = ask(gateway.address, &request("/payments", key, BODY)).await;
        assert_eq!(answer.unwrap().status(), 201);
    }
    let metrics = get(gateway.admin, "/metrics").await.unwrap().text();
    for (reason, count) in [("timestamp", 2), ("email", 1)] {
        let line = format!(
            "api_idempotency_key_weak_total{{operation=\"create_payment\",reason=\"{reason}\"}} {count}\n"
        );
        assert!(metrics.contains(&line), "no {line:?} in {metrics}");
    }
    let misuse = b"GET /misuse HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let page = ask(gateway.admin, misuse).await.unwrap().text();
    assert!(
        page.contains("Weak keys") && page.contains("timestamp"),
        "{page}"
    );
    assert!(!metrics.contains("alice") && !page.contains("alice"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_jwt_that_expires_is_refused_and_the_log_names_the_rule_for_it() {
    const TOKEN: &str =
        "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhY21lIiwiZXhwIjoxNzYzNDMwMDAwfQ.c2lnbmF0dXJl";
    let shop = Shop::open().await;
    let gateway_dir = GatewayDirectory::new(ROUTE);
    let gateway = block_in_place(|| gateway_dir.start(&shop.url()));
    let with_token = |token: &str| {
        let request = String::from_utf8(request("/payments", KEY, BODY)).unwrap();
        let header = format!("Host: shop\r\nAuthorization: Bearer {token}\r\n");
        request.replacen("Host: shop\r\n", &header, 1).into_bytes()
    };
    for _ in 0..2 {
        let refused = ask(gateway.address, &with_token(TOKEN)).await.unwrap();
        assert_eq!(refused.status(), 403, "{}", refused.text());
        assert!(refused.text().contains("tenant_unresolved"));
    }
    let served = ask(gateway.address, &with_token("sk_live_1"))
        .await
        .unwrap();
    assert_eq!(served.status(), 201, "{}", served.text());
    gateway.signal(Signal::TERM);
    let (_, log) = gateway.wait_for_exit().await;
    assert_eq!(log.matches("such as `jwt:sub`").count(), 1, "{log}");
    assert!(!log.contains(TOKEN), "{log}");
}
