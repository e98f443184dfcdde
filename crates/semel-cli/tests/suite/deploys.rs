//! Retries across a deploy: every row of the table in docs/changes.md, by restart, by `SIGHUP`, and
//! with an old and a new gateway at the same time, on both stores.

use std::process::{Command, Output};

use rustix::process::Signal;
use semel_testkit::database::Database;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;

use crate::support::http::{Message, ask, payment, request};
use crate::support::shop::Shop;
use crate::support::{Gateway, GatewayDirectory, TEST_TIMEOUT};

/// Keys that are used while the rules change.
const KEYS: usize = 200;

/// Concurrent requests for each of them, half of them at each gateway.
const RACERS: usize = 50;

const NAMED: &str = "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n";

/// Changes that no retry notices.
const ALLOWED: [(&str, &str, &str); 8] = [
    (
        "policy",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\nlease = \"7s\"\nretention = \"3h\"\nin_flight = \"accept\"\n",
    ),
    (
        "renamed with `was`",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"pay\"\nwas = \"create_payment\"\n",
    ),
    (
        "named with `was`",
        "[[route]]\nmatch = \"POST /payments\"\n",
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"pay\"\nwas = \"POST /payments\"\n",
    ),
    (
        "hosts left out",
        NAMED,
        "hosts = \"any\"\n[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n",
    ),
    (
        "another spelling of the route",
        "[[route]]\nmatch = \"POST /Payments/\"\n",
        "hosts = [[\"shop\", \"a.shop\"]]\n[[route]]\nmatch = \"POST /payments\"\n",
    ),
    (
        "rules added",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\nfingerprint = { headers = [\"API-Version\"], ignore = [\"/trace\"], defaults = { \"/channel\" = \"web\" } }\n",
    ),
    (
        "rules removed",
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\nfingerprint = { defaults = { \"/channel\" = \"web\" } }\n",
        NAMED,
    ),
    (
        "rules replaced",
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\nfingerprint = { defaults = { \"/channel\" = \"web\" } }\n",
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\nfingerprint = { defaults = { \"/channel\" = \"app\" } }\n",
    ),
];

/// Changes that would make a retry a new request, and what the refusal names.
const REFUSED: [(&str, &str, &str); 7] = [
    (
        "operation \"pay\"",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"pay\"\n",
    ),
    (
        "every path its own operation",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\n",
    ),
    (
        "key scope tenant",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\nkey_scope = \"tenant\"\n",
    ),
    (
        "key x-request-id (ietf)",
        NAMED,
        "header = \"X-Request-Id\"\n[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n",
    ),
    (
        "tenant none",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\noperation = \"create_payment\"\n[tenant]\nfrom = \"none\"\n",
    ),
    (
        "matched exactly",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\nmatch_exactly = true\noperation = \"create_payment\"\n",
    ),
    (
        "not guarded",
        NAMED,
        "[[route]]\nmatch = \"POST /payments\"\nkey = \"ignored\"\n",
    ),
];

/// One store, and the gateways in front of it.
struct Deployment {
    shop: Shop,
    directory: GatewayDirectory,
    store: String,
    /// Dropped last.
    _database: Option<Database>,
}

impl Deployment {
    /// On SQLite, and on PostgreSQL where there is a server.
    async fn on_both_stores() -> Vec<Self> {
        let mut all = vec![Self::on(None).await];
        if let Some(database) = Database::new().await {
            all.push(Self::on(Some(database)).await);
        }
        all
    }

    async fn on(database: Option<Database>) -> Self {
        let directory = GatewayDirectory::new("");
        let sqlite = || format!("sqlite:{}", directory.store().display());
        Self {
            store: database.as_ref().map_or_else(sqlite, |on| on.url.clone()),
            shop: Shop::open().await,
            directory,
            _database: database,
        }
    }

    fn start(&self, config: &str) -> Gateway {
        self.directory.configure(config);
        block_in_place(|| self.directory.start_on(&self.shop.url(), &self.store))
    }

    /// Starts a gateway that does not start.
    fn start_refused(&self, config: &str) -> String {
        self.directory.configure(config);
        let mut command = self.directory.command_on(&self.shop.url(), &self.store);
        let ended = block_in_place(|| command.output().unwrap());
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        String::from_utf8(ended.stderr).unwrap()
    }

    /// `semel contract …` for a configuration.
    fn contract(&self, config: &str, arguments: &[&str]) -> Output {
        self.directory.configure(config);
        let mut command = Command::new(env!("CARGO_BIN_EXE_semel"));
        command.current_dir(self.directory.path("")).env_clear();
        command.arg("contract").args(arguments);
        command.args(["--config", "semel.toml", "--store", &self.store]);
        command.args(["--upstream", &self.shop.url()]);
        block_in_place(|| command.output().unwrap())
    }

    async fn executes(&self, gateway: &Gateway, key: &str) -> Message {
        let before = self.shop.executions();
        let answer = ask(gateway.address, &payment(key)).await.unwrap();
        assert_eq!(answer.status(), 201, "{key}: {answer:?}");
        assert!(!answer.is_replay(), "{key}");
        assert_eq!(self.shop.executions(), before + 1, "{key}");
        answer
    }

    async fn replays(&self, gateway: &Gateway, key: &str, what: &str) {
        let before = self.shop.executions();
        let answer = ask(gateway.address, &payment(key)).await.unwrap();
        assert!(answer.is_replay(), "{what}: {key}: {answer:?}");
        assert_eq!(self.shop.executions(), before, "{what}: {key}");
        let misused = request("/payments", key, "{\"reference\":\"another\"}");
        let answer = ask(gateway.address, &misused).await.unwrap();
        assert_eq!(answer.status(), 422, "{what}: {key}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_change_by_restart_replays() {
    for (what, before, after) in ALLOWED {
        for deployment in Deployment::on_both_stores().await {
            let [old_key, new_key] = ["restart-old", "restart-new"];
            let old = deployment.start(before);
            deployment.executes(&old, old_key).await;
            old.kill();
            let new = deployment.start(after);
            deployment.replays(&new, old_key, what).await;
            deployment.executes(&new, new_key).await;
            new.kill();
            // And back: a deploy may be rolled back.
            let old = deployment.start(before);
            deployment.replays(&old, old_key, what).await;
            deployment.replays(&old, new_key, what).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn allowed_change_by_reload_replays() {
    for (what, before, after) in ALLOWED {
        for deployment in Deployment::on_both_stores().await {
            let [old_key, new_key] = ["reload-old", "reload-new"];
            let gateway = deployment.start(before);
            deployment.executes(&gateway, old_key).await;
            deployment.directory.configure(after);
            gateway.signal(Signal::HUP);
            gateway.wait_for_log("configuration reloaded").await;
            deployment.replays(&gateway, old_key, what).await;
            deployment.executes(&gateway, new_key).await;
            deployment.replays(&gateway, new_key, what).await;
        }
    }
}

/// The records of a renamed operation are listed under its new name from the reload on.
#[tokio::test(flavor = "multi_thread")]
async fn renamed_operation_has_its_new_name_in_the_admin_api() {
    let (_, before, after) = ALLOWED[1];
    for deployment in Deployment::on_both_stores().await {
        let gateway = deployment.start(before);
        deployment.executes(&gateway, "listed").await;
        deployment.directory.configure(after);
        gateway.signal(Signal::HUP);
        gateway.wait_for_log("configuration reloaded").await;
        for name in ["pay", "create_payment"] {
            let path = format!("/api/v1/operations?operation={name}");
            let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
            let listed = ask(gateway.admin, request.as_bytes()).await.unwrap().text();
            assert!(listed.contains("\"operation\":\"pay\""), "{listed}");
            assert!(!listed.contains("create_payment"), "{listed}");
        }
    }
}

/// Old and new processes serve one store: a record of either is replayed by both.
#[tokio::test(flavor = "multi_thread")]
async fn allowed_change_in_a_rolling_deploy_replays_at_both() {
    for (what, before, after) in ALLOWED {
        for deployment in Deployment::on_both_stores().await {
            let [old_key, new_key] = ["rolling-old", "rolling-new"];
            let old = deployment.start(before);
            let new = deployment.start(after);
            deployment.executes(&old, old_key).await;
            deployment.executes(&new, new_key).await;
            for gateway in [&old, &new] {
                deployment.replays(gateway, old_key, what).await;
                deployment.replays(gateway, new_key, what).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unsafe_change_is_refused_at_start_and_at_reload() {
    for (named, before, after) in REFUSED {
        for deployment in Deployment::on_both_stores().await {
            let gateway = deployment.start(before);
            // Nothing is lost yet, so anything goes.
            deployment.directory.configure(after);
            gateway.signal(Signal::HUP);
            gateway.wait_for_log("configuration reloaded").await;
            gateway.kill();
            let gateway = deployment.start(before);
            deployment.executes(&gateway, "kept").await;

            deployment.directory.configure(after);
            gateway.signal(Signal::HUP);
            gateway
                .wait_for_log("the new configuration is refused")
                .await;
            deployment.replays(&gateway, "kept", named).await;
            gateway.kill();

            let message = deployment.start_refused(after);
            for part in [
                "POST /payments: ",
                &format!(" → {named}; "),
                "0 unfinished and 1 replayable records of \"create_payment\"",
                "the last window ends at",
                "`was = \"…\"`",
                "semel contract accept",
            ] {
                assert!(message.contains(part), "no {part:?} in {message}");
            }
            let diff = deployment.contract(after, &["diff"]);
            assert_eq!(diff.status.code(), Some(1), "{diff:?}");
            let text = String::from_utf8(diff.stdout).unwrap();
            assert!(text.starts_with("refused: POST /payments: "), "{text}");

            let gateway = deployment.start(before);
            deployment.replays(&gateway, "kept", named).await;
        }
    }
}

/// With an acceptance the gateway starts, and the audit trail has its reason.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_change_starts_and_is_audited() {
    let (_, before, after) = REFUSED[0];
    for deployment in Deployment::on_both_stores().await {
        let gateway = deployment.start(before);
        deployment.executes(&gateway, "left-behind").await;
        gateway.kill();
        let empty = deployment.contract(after, &["accept", "--reason", " "]);
        assert_eq!(empty.status.code(), Some(1), "{empty:?}");
        deployment.start_refused(after);
        let accept = ["accept", "--reason", "OPS-412", "--by", "ada"];
        let accepted = deployment.contract(after, &accept);
        assert!(accepted.status.success(), "{accepted:?}");
        let gateway = deployment.start(after);
        // This is what was accepted.
        deployment.executes(&gateway, "left-behind").await;

        let mut show = Command::new(env!("CARGO_BIN_EXE_semel"));
        show.args(["contract", "show", "--store", &deployment.store]);
        let shown = block_in_place(|| show.env_clear().output().unwrap());
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(
            shown.contains("accepted by ada for POST /payments: OPS-412"),
            "{shown}"
        );
    }
}

/// The first list of regions is a change of what identifies records, too.
#[tokio::test(flavor = "multi_thread")]
async fn list_of_regions_is_refused_until_it_is_accepted() {
    let list = "[region]\nname = \"eu\"\nversion = 1\nregions = { eu = \"http://127.0.0.1:1\" }\n";
    let after = format!("{NAMED}{list}");
    for deployment in Deployment::on_both_stores().await {
        let gateway = deployment.start(NAMED);
        deployment.executes(&gateway, "kept").await;
        deployment.directory.configure(&after);
        gateway.signal(Signal::HUP);
        gateway
            .wait_for_log("the running configuration stays in use")
            .await;
        deployment.replays(&gateway, "kept", "reload").await;
        gateway.kill();

        let message = deployment.start_refused(&after);
        let expected =
            "POST /payments: one region → regions eu (version 1); 0 unfinished and 1 replayable";
        assert!(message.contains(expected), "{message}");
        let accepted = deployment.contract(&after, &["accept", "--reason", "OPS-413"]);
        assert!(accepted.status.success(), "{accepted:?}");
        let gateway = deployment.start(&after);
        // Nothing is granted before the list is confirmed, here by this region alone.
        let confirmed = async {
            while ask(gateway.address, &payment("kept"))
                .await
                .unwrap()
                .status()
                == 503
            {}
        };
        timeout(TEST_TIMEOUT, confirmed).await.unwrap();
        deployment.replays(&gateway, "kept", "accepted").await;
    }
}

/// The rules change between two gateways while clients race for every key at both: each key has one
/// effect, and no honest retry is rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn races_across_a_rolling_deploy_have_one_effect_each() {
    let (_, before, after) = ALLOWED[5];
    for deployment in Deployment::on_both_stores().await {
        let old = deployment.start(before);
        let new = deployment.start(after);
        let gateways = [old.address, new.address];
        for number in 0..KEYS {
            let key = format!("race-{number}");
            let mut racing = JoinSet::new();
            for racer in 0..RACERS {
                let (address, request) = (gateways[racer % 2], payment(&key));
                racing.spawn(async move { ask(address, &request).await.unwrap() });
            }
            let answers = timeout(TEST_TIMEOUT, racing.join_all()).await.unwrap();
            for answer in answers {
                let is_honest = matches!(answer.status(), 201 | 409);
                assert!(is_honest, "{key}: {answer:?}");
            }
            assert_eq!(deployment.shop.charges(&key), 1, "{key}");
        }
        for gateway in [&old, &new] {
            deployment
                .replays(gateway, "race-0", "after the race")
                .await;
        }
        assert_eq!(deployment.shop.executions(), KEYS);
    }
}
