//! Several regions: gateways with a store and an application each, and one ledger of effects.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use http::Method;
use semel_core::contract::{AgreementState, RegionAgreement};
use semel_core::store::Query;
use semel_core::{Clock as _, Fingerprint, Store as _, SystemClock};
use semel_gateway::config::{Config, Environment, Source};
use semel_gateway::regions::{self, Peers};
use semel_gateway::server::{Limits, serve};
use semel_gateway::upstream::Forward;
use semel_gateway::{GatewayService, InternalRoutes, build_layer, webhooks};
use semel_sqlite::Sqlite;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::boundary::fixture::{Answer, Call};
use crate::support::upstream_at;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
const OTHER_SECRET: &str = "fedcba9876543210fedcba9876543210";
const EVENT_SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// Far longer than the regions take to agree.
const PATIENCE: Duration = Duration::from_secs(30);

/// Every execution, by its key: the region and the id of the operation.
type Ledger = Arc<Mutex<HashMap<String, Vec<(String, String)>>>>;

/// One region: a gateway, its store and its application.
struct Region {
    name: &'static str,
    address: SocketAddr,
    directory: TempDir,
    app: SocketAddr,
    /// Present while its gateway runs.
    running: Option<Running>,
}

struct Running {
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
    store: Sqlite,
}

/// How a region's configuration differs from that of the others.
#[derive(Clone)]
struct Setup {
    version: u32,
    secret: &'static str,
    /// Names in the list, where not all of them are.
    names: Vec<&'static str>,
    rules: &'static str,
    route: &'static str,
    top: &'static str,
}

struct World {
    regions: Vec<Region>,
    ledger: Ledger,
}

#[derive(Clone)]
struct App {
    region: &'static str,
    ledger: Ledger,
}

async fn pay(State(app): State<App>, headers: HeaderMap) -> axum::response::Response {
    let text = |name: &str| {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().trim_matches('"').to_owned()
    };
    let leaked = headers
        .keys()
        .any(|name| name.as_str().starts_with("semel-region"));
    assert!(!leaked, "the application saw the headers of the regions");
    let id = text("semel-operation-id");
    app.ledger
        .lock()
        .unwrap()
        .entry(text("idempotency-key"))
        .or_default()
        .push((app.region.to_owned(), id.clone()));
    if headers.contains_key("x-unknown") {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            [("semel-outcome", "unknown")],
        )
            .into_response();
    }
    tokio::task::yield_now().await;
    let forwarded = headers.get("x-forwarded-for").cloned();
    let body = format!("paid at {} as {id}", app.region);
    let mut response = (StatusCode::CREATED, [("x-from", app.region)], body).into_response();
    if let Some(forwarded) = forwarded {
        response.headers_mut().insert("x-seen", forwarded);
    }
    response
}

async fn audit() -> &'static str {
    "unguarded"
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            version: 7,
            secret: SECRET,
            names: Vec::new(),
            rules: "",
            route: "match = \"POST /payments\"\noperation = \"pay\"\nkey = \"optional\"",
            top: "",
        }
    }
}

impl World {
    /// Regions that have not started.
    async fn prepare(names: &[&'static str]) -> Self {
        let ledger = Ledger::default();
        let mut regions = Vec::new();
        for name in names {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let app = App {
                region: name,
                ledger: Arc::clone(&ledger),
            };
            let router = Router::new()
                .route("/payments", post(pay))
                .route("/refunds", post(pay))
                .route("/audit", post(audit))
                .with_state(app);
            let app = listener.local_addr().unwrap();
            tokio::spawn(async move { axum::serve(listener, router).await });
            let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            regions.push(Region {
                name,
                address: free.local_addr().unwrap(),
                directory: tempfile::tempdir().unwrap(),
                app,
                running: None,
            });
        }
        Self { regions, ledger }
    }

    /// Regions that have confirmed their list.
    async fn start(names: &[&'static str]) -> Self {
        Self::start_with(names, &Setup::default()).await
    }

    async fn start_with(names: &[&'static str], setup: &Setup) -> Self {
        let mut world = Self::prepare(names).await;
        for at in 0..names.len() {
            world.start_one(at, setup).await;
        }
        for at in 0..names.len() {
            world.wait_until_agreed(at).await;
        }
        world
    }

    async fn start_one(&mut self, at: usize, setup: &Setup) {
        let config = self.config(at, setup);
        self.regions[at].start(config).await;
    }

    fn config(&self, at: usize, setup: &Setup) -> Config {
        let is_listed =
            |region: &&Region| setup.names.is_empty() || setup.names.contains(&region.name);
        let urls: Vec<_> = self
            .regions
            .iter()
            .filter(is_listed)
            .map(|region| format!("{} = \"http://{}\"", region.name, region.address))
            .collect();
        let region = &self.regions[at];
        let text = format!(
            "{}\nupstream = \"http://{}\"\nstore = \"sqlite:{}\"\n\
             [tenant]\nfrom = \"header:X-Account\"\n\
             [policy]\nupstream_timeout = \"2s\"\n\
             [region]\nname = \"{}\"\nversion = {}\nregions = {{ {} }}\nsecret_env = \"REGION\"\n\
             timeout = \"4s\"\n{}\n\
             [[route]]\n{}\n\
             [[webhook]]\nsource = \"psp\"\nscheme = \"standard\"\nsecret_env = \"PSP\"\n\
             operation_id = \"/operation\"\n\
             completed = {{ pointer = \"/type\", equals = [\"paid\"] }}\nresponse_body = \"/data\"\n\
             [[webhook]]\nsource = \"bykey\"\nscheme = \"standard\"\nsecret_env = \"PSP\"\n\
             key = \"/key\"\ntenant = \"/tenant\"\noperation = \"pay\"\n\
             completed = {{ pointer = \"/type\", equals = [\"paid\"] }}\nresponse_body = \"/data\"\n",
            setup.top,
            region.app,
            region.directory.path().join("semel.db").display(),
            region.name,
            setup.version,
            urls.join(", "),
            setup.rules,
            setup.route,
        );
        load(region.directory.path(), &text, setup.secret)
    }

    async fn wait_until_agreed(&self, at: usize) {
        let agreed = async {
            loop {
                // A key whose home is anywhere is refused before that.
                let probe = self.call(at, &format!("probe-{at}")).send().await;
                if probe.status == StatusCode::CREATED {
                    return;
                }
                // sleeps because the regions agree in their own time.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, agreed).await.unwrap();
    }

    fn call(&self, at: usize, key: &str) -> Call {
        Call::to(self.regions[at].address, Method::POST, "/payments")
            .header("idempotency-key", key)
            .header("x-account", "acme")
            .host("shop.example")
            .body("{\"amount\":1}")
    }

    /// The region that executed a key.
    fn home_of(&self, key: &str) -> usize {
        let effects = self.effects(key);
        let [(region, _)] = &effects[..] else {
            panic!("{key} has {effects:?}");
        };
        self.at(region)
    }

    fn at(&self, name: &str) -> usize {
        self.regions
            .iter()
            .position(|region| region.name == name)
            .unwrap()
    }

    fn effects(&self, key: &str) -> Vec<(String, String)> {
        let ledger = self.ledger.lock().unwrap();
        ledger.get(key).cloned().unwrap_or_default()
    }

    /// A key with its home in this region, which has not been used.
    fn key_at(&self, at: usize, prefix: &str) -> String {
        let config = self.config(at, &Setup::default());
        let table = config.region.as_ref().unwrap().table().clone();
        let mut keys = (0..).map(|number| format!("{prefix}-{number}"));
        let is_here = |key: &String| {
            let key = semel_core::Key::new(key.clone()).unwrap();
            let identity = semel_core::Identity::new("acme", "pay", key).unwrap();
            **table.home(&identity).unwrap() == *self.regions[at].name
        };
        keys.find(is_here).unwrap()
    }
}

fn load(directory: &Path, text: &str, secret: &str) -> Config {
    let file = directory.join("semel.toml");
    std::fs::write(&file, text).unwrap();
    let source = Source {
        file: Some(file),
        flags: semel_gateway::config::Flags::default(),
        environment: Environment::from_pairs([("REGION", secret), ("PSP", EVENT_SECRET)]),
    };
    source.load().unwrap_or_else(|report| panic!("{report}"))
}

impl Region {
    async fn start(&mut self, config: Config) {
        let store = Sqlite::open(self.directory.path().join("semel.db"))
            .await
            .unwrap();
        let layer = build_layer(&config, store.clone()).unwrap();
        let known = config.region.clone().unwrap();
        regions::adopt(Some(&known), &layer).await.unwrap();
        let peers = Peers::new(&known, &config.trusted_proxies).unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(regions::keep_agreed(
            peers.clone(),
            store.clone(),
            stop.clone(),
        ));
        let internal = InternalRoutes {
            store: store.clone(),
            sources: ArcSwap::from_pointee(webhooks::sources(&config)),
        };
        let forward = Forward::new(upstream_at(self.app), Duration::from_secs(2));
        let service = GatewayService::new(
            Arc::new(ArcSwap::from_pointee(layer)),
            Arc::new(internal),
            forward.with_peers(Some(peers)),
        );
        let listener = TcpListener::bind(self.address).await.unwrap();
        let serving = serve(listener, service, Limits::default(), None, stop.clone());
        let served = tokio::spawn(async move {
            let _ = serving.await;
        });
        self.running = Some(Running {
            stop,
            served,
            store,
        });
    }

    /// Stops its gateway; new connections are refused, and idle ones are closed.
    async fn stop(&mut self) {
        let running = self.running.take().unwrap();
        running.stop.cancel();
        running.served.await.unwrap();
    }

    fn store(&self) -> &Sqlite {
        &self.running.as_ref().unwrap().store
    }

    async fn records(&self) -> usize {
        let page = self.store().list(Query::default()).await.unwrap();
        page.operations.len()
    }
}

#[tokio::test]
async fn one_key_at_all_regions_at_once_has_one_effect_and_one_response() {
    let world = World::start(&["ap", "eu", "us"]).await;
    let mut working = JoinSet::new();
    for key in 0..30 {
        for at in [0, 1, 2, 0, 1, 2] {
            let call = world.call(at, &format!("key-{key}"));
            working.spawn(async move { (key, call.send().await) });
        }
    }
    let mut bodies: HashMap<usize, Vec<String>> = HashMap::new();
    while let Some(ended) = working.join_next().await {
        let (key, answer) = ended.unwrap();
        match answer.status.as_u16() {
            201 => bodies
                .entry(key)
                .or_default()
                .push(answer.text().to_owned()),
            409 => {}
            _ => panic!("{answer:?}"),
        }
    }
    let mut homes: Vec<_> = Vec::new();
    for key in 0..30 {
        homes.push(world.home_of(&format!("key-{key}")));
        let bodies = &bodies[&key];
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");
    }
    homes.sort_unstable();
    homes.dedup();
    assert_eq!(homes, [0, 1, 2], "every region is the home of some keys");
}

#[tokio::test]
async fn a_retry_at_another_region_is_replayed_unchanged() {
    let world = World::start(&["eu", "us"]).await;
    for home in [0, 1] {
        let away = 1 - home;
        let key = world.key_at(home, "moved");
        let first = world.call(away, &key).send().await;
        assert_eq!(first.status, StatusCode::CREATED);
        assert!(!first.is_replay());
        assert_eq!(world.home_of(&key), home);
        for at in [home, away] {
            let again = world.call(at, &key).send().await;
            assert!(again.is_replay());
            assert_eq!((again.status, &again.body), (first.status, &first.body));
            for name in ["idempotency-key-expires", "idempotency-key"] {
                assert_eq!(again.header(name), first.header(name), "{name}");
            }
            assert_eq!(again.header("semel-region"), None);
        }
        let other = world.call(away, &key).body("{\"amount\":2}").send().await;
        other.is_refused(422, "idempotency_key_reused");
        assert_eq!(world.effects(&key).len(), 1);
    }
}

#[tokio::test]
async fn a_request_without_a_key_stays_here() {
    let world = World::start(&["eu", "us"]).await;
    for at in [0, 1] {
        let audit = Call::to(world.regions[at].address, Method::POST, "/audit");
        assert_eq!(audit.send().await.text(), "unguarded");
    }
}

#[tokio::test]
async fn a_home_that_is_down_means_503_and_later_one_execution() {
    let mut world = World::start(&["eu", "us"]).await;
    let (before, key) = (world.key_at(1, "before"), world.key_at(1, "down"));
    assert_eq!(
        world.call(0, &before).send().await.status,
        StatusCode::CREATED
    );
    world.regions[1].stop().await;
    for key in [&before, &key] {
        let refused = world.call(0, key).send().await;
        refused.is_refused(503, "idempotency_home_unavailable");
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(refused.header("idempotency-key"), Some(key.as_str()));
    }
    assert!(world.effects(&key).is_empty());
    // Keys of this region do not need the other one.
    let own = world.key_at(0, "own");
    assert_eq!(world.call(0, &own).send().await.status, StatusCode::CREATED);

    world.start_one(1, &Setup::default()).await;
    world.wait_until_agreed(1).await;
    assert!(world.call(0, &before).send().await.is_replay());
    assert_eq!(world.call(0, &key).send().await.status, StatusCode::CREATED);
    assert_eq!((world.home_of(&before), world.home_of(&key)), (1, 1));
}

#[tokio::test]
async fn a_region_starts_without_the_others_once_they_have_confirmed_its_list() {
    let mut world = World::start(&["eu", "us"]).await;
    for at in [0, 1] {
        world.regions[at].stop().await;
    }
    world.start_one(0, &Setup::default()).await;
    let own = world.key_at(0, "alone");
    let executed = async {
        while world.call(0, &own).send().await.status != StatusCode::CREATED {
            // sleeps because the gateway reads the confirmation in its own time.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, executed).await.unwrap();
}

/// What answers at the address of a region and is not its gateway, such as an application or a
/// balancer, is never taken for the response of the home.
#[tokio::test]
async fn only_a_gateway_of_the_home_answers_for_it() {
    let mut world = World::start(&["eu", "us"]).await;
    let key = world.key_at(1, "impostor");
    world.regions[1].stop().await;
    let impostor = TcpListener::bind(world.regions[1].address).await.unwrap();
    let router = Router::new().fallback(|| async { (StatusCode::CREATED, "paid by an impostor") });
    tokio::spawn(async move { axum::serve(impostor, router).await });
    let refused = world.call(0, &key).send().await;
    refused.is_refused(503, "idempotency_home_unavailable");
}

#[tokio::test]
async fn a_response_that_breaks_off_is_no_response() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut world = World::start(&["eu", "us"]).await;
    let key = world.key_at(1, "broken");
    world.regions[1].stop().await;
    let broken = TcpListener::bind(world.regions[1].address).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = broken.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let head =
                "HTTP/1.1 201 Created\r\nsemel-region: us\r\ncontent-length: 100\r\n\r\npaid";
            let _ = stream.write_all(head.as_bytes()).await;
        }
    });
    world
        .call(0, &key)
        .send()
        .await
        .is_refused(503, "idempotency_home_unavailable");
    assert!(world.effects(&key).is_empty());
}

#[tokio::test]
async fn a_client_that_forges_the_headers_of_a_region_is_refused() {
    let world = World::start(&["eu", "us"]).await;
    let key = world.key_at(1, "forged");
    let config = world.config(0, &Setup::default());
    let list = config.region.unwrap();
    let forged: [&[(&str, &str)]; 4] = [
        &[("semel-region-from", "us")],
        &[("semel-region-to", "eu"), ("semel-region-from", "us")],
        &[
            ("semel-region-token", OTHER_SECRET),
            ("semel-region-from", "us"),
        ],
        &[("semel-region-hops", "1")],
    ];
    for headers in forged {
        let mut call = world.call(0, &key);
        for (name, value) in headers {
            call = call.header(name, value);
        }
        call.send()
            .await
            .is_refused(503, "idempotency_region_mismatch");
    }
    assert!(world.effects(&key).is_empty());
    assert_eq!(list.name(), "eu");
}

/// With the secret and with everything else right, a region executes nothing whose home is elsewhere,
/// and sends it nowhere.
#[tokio::test]
async fn a_request_of_another_region_is_neither_executed_nor_sent_on_where_this_is_not_the_home() {
    let world = World::start(&["ap", "eu", "us"]).await;
    let key = world.key_at(2, "astray");
    let fingerprint = world.regions[1].store().contracts().await.unwrap();
    let fingerprint = fingerprint.contracts.regions.unwrap().list;
    let identity =
        semel_core::Identity::new("acme", "pay", semel_core::Key::new(key.as_str()).unwrap());
    let identity = semel_core::hex(&identity.unwrap().hash().0);
    let send = |at: usize, to: &str, identity: &str, path: &str| {
        Call::to(world.regions[at].address, Method::POST, path)
            .header("idempotency-key", &key)
            .header("x-account", "acme")
            .host("shop.example")
            .header("semel-region-from", "ap")
            .header("semel-region-to", to)
            .header("semel-region-token", SECRET)
            .header("semel-region-list", fingerprint.as_bytes())
            .header("semel-region-identity", identity)
            .body("{\"amount\":1}")
            .send()
    };
    let astray = send(1, "eu", &identity, "/payments").await;
    astray.is_refused(503, "idempotency_region_mismatch");
    let wrong_address = send(1, "us", &identity, "/payments").await;
    wrong_address.is_refused(503, "idempotency_region_mismatch");
    let other_identity = send(2, "us", &"0".repeat(32), "/payments").await;
    other_identity.is_refused(503, "idempotency_region_mismatch");
    assert!(world.effects(&key).is_empty());
    assert_eq!(
        send(2, "us", &identity, "/payments").await.status,
        StatusCode::CREATED
    );
    assert_eq!(world.home_of(&key), 2);
}

/// The home would pass it to its application without a record.
#[tokio::test]
async fn a_request_that_the_home_does_not_guard_is_refused() {
    let mut world = World::start(&["eu", "us"]).await;
    let key = world.key_at(1, "unguarded");
    world.regions[1].stop().await;
    let ignored = Setup {
        route: "match = \"POST /payments\"\nkey = \"ignored\"\n\
                [[route]]\nmatch = \"POST /refunds\"\noperation = \"pay\"",
        ..Setup::default()
    };
    let config = world.config(1, &ignored);
    world.regions[1].directory = tempfile::tempdir().unwrap();
    world.regions[1].start(config).await;
    let refused = world.call(0, &key).send().await;
    refused.is_refused(503, "idempotency_region_mismatch");
    assert!(refused.text().contains("do not agree about the home"));
    assert!(world.effects(&key).is_empty());
}

#[tokio::test]
async fn regions_with_different_lists_or_secrets_execute_nothing_for_each_other() {
    let others = [
        Setup {
            version: 8,
            ..Setup::default()
        },
        Setup {
            secret: OTHER_SECRET,
            ..Setup::default()
        },
        // The same version, with another rule.
        Setup {
            rules: "tenant_home = { acme = \"eu\" }",
            ..Setup::default()
        },
    ];
    for other in others {
        let mut world = World::prepare(&["eu", "us"]).await;
        world.start_one(0, &Setup::default()).await;
        world.start_one(1, &other).await;
        for at in [0, 1] {
            for key in 0..6 {
                let refused = world.call(at, &format!("key-{key}")).send().await;
                refused.is_refused(503, "idempotency_region_mismatch");
            }
        }
        assert!(world.ledger.lock().unwrap().is_empty());
    }
}

/// Otherwise a new and empty region would execute keys that another one has executed.
#[tokio::test]
async fn a_region_that_is_added_executes_nothing_before_all_others_know_it() {
    let mut world = World::prepare(&["ap", "eu", "us"]).await;
    let two = Setup {
        names: vec!["eu", "us"],
        ..Setup::default()
    };
    for at in [1, 2] {
        world.start_one(at, &two).await;
    }
    for at in [1, 2] {
        world.wait_until_agreed(at).await;
    }
    let three = Setup {
        version: 8,
        ..Setup::default()
    };
    world.start_one(0, &three).await;
    for number in 0..12 {
        let key = format!("key-{number}");
        assert_eq!(world.call(1, &key).send().await.status, StatusCode::CREATED);
        let refused = world.call(0, &key).send().await;
        refused.is_refused(503, "idempotency_region_mismatch");
        assert_eq!(world.effects(&key).len(), 1);
    }
    assert_eq!(world.regions[0].records().await, 0);
}

#[tokio::test]
async fn a_process_of_the_same_store_with_another_list_stops_this_one() {
    let world = World::start(&["eu", "us"]).await;
    let key = world.key_at(0, "superseded");
    let store = world.regions[0].store();
    let mut published = store.contracts().await.unwrap();
    published.contracts.regions = Some(RegionAgreement {
        list: "another list".into(),
        version: 8,
        state: AgreementState::Replacing,
    });
    let written = store.publish_contracts(published.revision, published.contracts);
    assert!(written.await.unwrap());
    let refused = async {
        let mut number = 0;
        loop {
            number += 1;
            let answer = world.call(0, &format!("{key}-{number}")).send().await;
            if answer.status == StatusCode::SERVICE_UNAVAILABLE {
                return answer;
            }
        }
    };
    let refused = tokio::time::timeout(PATIENCE, refused).await.unwrap();
    refused.is_refused(503, "idempotency_region_mismatch");
    assert!(refused.text().contains("another list"), "{refused:?}");
}

#[tokio::test]
async fn the_home_of_a_tenant_is_the_one_of_its_rule() {
    let setup = Setup {
        rules: "tenant_home = { \"ac*\" = \"us\" }",
        ..Setup::default()
    };
    let world = World::start_with(&["eu", "us"], &setup).await;
    for key in 0..10 {
        let key = format!("key-{key}");
        assert_eq!(world.call(0, &key).send().await.status, StatusCode::CREATED);
        assert_eq!(world.home_of(&key), 1);
    }
}

/// The home sees the client's address, and not that of the other gateway alone.
#[tokio::test]
async fn the_home_learns_where_the_client_is() {
    let world = World::start(&["eu", "us"]).await;
    let key = world.key_at(1, "forwarded");
    let call = world.call(0, &key).header("x-forwarded-for", "203.0.113.7");
    let answer = call.send().await;
    let seen = answer.header("x-seen").unwrap();
    assert_eq!(seen, "203.0.113.7, 127.0.0.1, 127.0.0.1");

    let setup = Setup {
        top: "trusted_proxies = []",
        ..Setup::default()
    };
    let strict = World::start_with(&["eu", "us"], &setup).await;
    let call = strict
        .call(0, &key)
        .header("x-forwarded-for", "203.0.113.7");
    let answer = call.send().await;
    // The client is not a trusted proxy, so its header is not forwarded.
    assert!(!answer.header("x-seen").unwrap().contains("203.0.113.7"));
}

/// As `Answer::refuses`, with the gateway's own pages.
trait Refused {
    fn is_refused(&self, status: u16, code: &str);
}

impl Refused for Answer {
    #[track_caller]
    fn is_refused(&self, status: u16, code: &str) {
        assert_eq!(self.status.as_u16(), status, "{}", self.text());
        let problem = self.json();
        assert_eq!(problem["code"], code, "{problem}");
        assert_eq!(problem["type"], format!("/.semel/errors/{code}"));
        assert!(!self.is_replay());
    }
}

fn status_of(answer: &Answer) -> String {
    answer.json()["status"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_region_knows_the_status_of_an_operation() {
    let mut world = World::start(&["ap", "eu", "us"]).await;
    let key = world.key_at(2, "status");
    world.call(0, &key).send().await;
    let (_, id) = world.effects(&key)[0].clone();
    let ask = |at: usize, id: &str, tenant: &str| {
        let path = format!("/.semel/operations/{id}");
        Call::to(world.regions[at].address, Method::GET, &path)
            .header("x-account", tenant)
            .send()
    };
    for at in 0..3 {
        let found = ask(at, &id, "acme").await;
        assert_eq!(
            (found.status, status_of(&found).as_str()),
            (StatusCode::OK, "completed")
        );
        assert_eq!(ask(at, &id, "other").await.status, StatusCode::NOT_FOUND);
    }
    let unknown = semel_core::OperationId::generate().to_string();
    assert_eq!(ask(0, &unknown, "acme").await.status, StatusCode::NOT_FOUND);
    world.regions[2].stop().await;
    let path = format!("/.semel/operations/{id}");
    let answer = Call::to(world.regions[0].address, Method::GET, &path)
        .header("x-account", "acme")
        .send()
        .await;
    answer.is_refused(503, "idempotency_home_unavailable");
}

fn event(world: &World, at: usize, source: &str, id: &str, body: &str) -> Call {
    let signer = semel_worker::webhook::Signer::new([EVENT_SECRET]).unwrap();
    let now = SystemClock.now();
    let path = format!("/.semel/webhooks/{source}");
    let mut call = Call::to(world.regions[at].address, Method::POST, &path);
    for (name, value) in signer.sign(id, now, body.as_bytes()).unwrap() {
        call = call.header(name.as_str(), value);
    }
    call.body(body.to_owned())
}

#[tokio::test]
async fn an_event_reaches_the_record_in_its_home_from_every_region() {
    let mut world = World::start(&["ap", "eu", "us"]).await;
    for (source, at) in [("psp", 0), ("psp", 2), ("bykey", 0), ("bykey", 2)] {
        let key = world.key_at(2, &format!("event-{source}-{at}"));
        let call = world.call(1, &key).header("x-unknown", "yes");
        assert!(call.send().await.status.is_server_error());
        let id = world.effects(&key)[0].1.clone();
        let body = format!(
            "{{\"type\":\"paid\",\"operation\":\"{id}\",\"key\":\"{key}\",\"tenant\":\"acme\",\"data\":{{\"paid\":1}}}}"
        );
        let sent = event(&world, at, source, &key, &body).send().await;
        assert_eq!(sent.status, StatusCode::NO_CONTENT, "{sent:?}");
        for at in 0..3 {
            let replay = world.call(at, &key).header("x-unknown", "yes").send().await;
            assert!(replay.is_replay(), "{source} {at}: {replay:?}");
            assert_eq!(replay.text(), "{\"paid\":1}");
        }
        assert_eq!(world.effects(&key).len(), 1);
        let forged = event(&world, at, source, "other", &body)
            .body("{}")
            .send()
            .await;
        assert_eq!(forged.status, StatusCode::UNAUTHORIZED);
    }
    // It is sent again while a region that may have the record does not answer.
    world.regions[2].stop().await;
    let body = format!(
        "{{\"type\":\"paid\",\"operation\":\"{}\",\"data\":1}}",
        semel_core::OperationId::generate()
    );
    let sent = event(&world, 0, "psp", "late", &body).send().await;
    assert_eq!(sent.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_changed_list_is_refused_while_records_exist_and_accepted_deliberately() {
    let mut world = World::start(&["eu", "us"]).await;
    let key = world.key_at(0, "kept");
    assert_eq!(world.call(0, &key).send().await.status, StatusCode::CREATED);
    let store = world.regions[0].store().clone();
    let layer = |setup: &Setup| {
        let config = world.config(0, setup);
        (
            build_layer(&config, store.clone()).unwrap(),
            config.region.unwrap(),
        )
    };
    let newer = Setup {
        version: 8,
        ..Setup::default()
    };
    let (refused, known) = layer(&newer);
    let error = regions::adopt(Some(&known), &refused)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("regions eu, us (version 7) → regions eu, us (version 8); 0 unfinished and"),
        "{error}"
    );
    // A refusal changes nothing for the processes that serve.
    let agreed = store.contracts().await.unwrap().contracts.regions.unwrap();
    assert_eq!(
        (agreed.version, agreed.state),
        (7, AgreementState::Confirmed)
    );
    assert!(world.call(0, &key).send().await.is_replay());

    refused
        .accept_contracts("operator", "no client retries")
        .await
        .unwrap();
    let (accepted, _) = layer(&newer);
    accepted.publish().await.unwrap();
    let plan = accepted.plan_contracts().await.unwrap();
    assert!(plan.changes.iter().all(|change| change.accepted));

    for region in &mut world.regions {
        region.stop().await;
    }
}

#[tokio::test]
async fn a_list_that_changes_under_its_version_or_loses_a_region_is_refused_without_records() {
    let world = World::prepare(&["ap", "eu", "us"]).await;
    let store = Sqlite::open(world.regions[1].directory.path().join("semel.db"))
        .await
        .unwrap();
    let layer = |setup: &Setup| build_layer(&world.config(1, setup), store.clone()).unwrap();
    let two = || Setup {
        names: vec!["eu", "us"],
        ..Setup::default()
    };
    layer(&two()).publish().await.unwrap();
    for (setup, expected) in [
        (Setup::default(), "a changed list needs another `version`"),
        (
            Setup {
                rules: "tenant_home = { acme = \"us\" }",
                ..two()
            },
            "a changed list needs another `version`",
        ),
        (
            Setup {
                names: vec!["eu"],
                version: 8,
                ..Setup::default()
            },
            "region \"us\" is no longer in the list",
        ),
    ] {
        let error = layer(&setup).publish().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let three = Setup {
        version: 8,
        ..Setup::default()
    };
    layer(&three).publish().await.unwrap();
}

#[tokio::test]
async fn a_store_that_served_one_region_is_refused_while_it_has_records() {
    let world = World::prepare(&["eu", "us"]).await;
    let store = Sqlite::open(world.regions[0].directory.path().join("semel.db"))
        .await
        .unwrap();
    let mut alone = world.config(0, &Setup::default());
    alone.region = None;
    let layer = build_layer(&alone, store.clone()).unwrap();
    layer.publish().await.unwrap();
    let identity = semel_core::Identity::new("acme", "pay", semel_core::Key::new("k").unwrap());
    let reserve = semel_core::Reserve {
        id: semel_core::OperationId::generate(),
        identity: identity.unwrap(),
        fingerprints: Fingerprint::from_parts(1, [7; 32]).into(),
        owner: "test".into(),
        policy: semel_core::Policy::default(),
    };
    store.reserve(reserve).await.unwrap();
    let several = build_layer(&world.config(0, &Setup::default()), store.clone()).unwrap();
    let error = several.publish().await.unwrap_err().to_string();
    assert!(
        error.contains("one region → regions eu, us (version 7); 1 unfinished"),
        "{error}"
    );
}
