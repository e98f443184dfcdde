//! What an acknowledged write survives: hosts that do not answer, roles that commit too early, and
//! waits for a standby that end too early.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::{completion, grant, granted, request};
use semel_core::transaction::TransactionWrite;
use semel_core::transition::Decision;
use semel_core::{Error as StoreError, Held, Store, Transaction};
use semel_postgres::transaction::OpenTransaction;
use semel_postgres::{Error, Postgres};
use semel_testkit::database::Database;
use semel_testkit::postgres_server::Server;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tokio_postgres::{Client, NoTls};

/// Much less than a client would wait, and more than two busy cores need.
const OPENS_WITHIN: Duration = Duration::from_secs(5);
/// How long another process may take.
const PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

#[tokio::test]
async fn a_first_host_that_accepts_and_never_answers_is_passed_over() {
    let Some(database) = Database::new().await else {
        return;
    };
    // The kernel accepts; the listener never reads.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().unwrap();
    let (user, rest) = database.url.rsplit_once('@').unwrap();
    let url = format!("{user}@{silent},{rest}");
    let opened = timeout(OPENS_WITHIN, Postgres::open(&url)).await;
    let store = opened.expect("the store opens in time").unwrap();
    granted(&store, "k").await;
    let leader = store.leader().unwrap();
    assert!(rest.starts_with(leader.address.split('/').next().unwrap()));
    let (_, name) = rest.split_once('/').unwrap();
    let all_silent = format!("{user}@{silent},{silent}/{name}");
    let refused = timeout(OPENS_WITHIN, Postgres::open(&all_silent)).await;
    let refused = refused.expect("silent hosts are given up in time");
    let reason = refused.unwrap_err().to_string();
    assert!(reason.contains("does not answer"), "{reason}");
}

#[tokio::test]
async fn where_nothing_is_replicated_replicated_durability_is_refused() {
    let Some(database) = Database::new().await else {
        return;
    };
    let with = |word: &str| {
        let separator = if database.url.contains('?') { '&' } else { '?' };
        format!("{}{separator}durability={word}", database.url)
    };
    let error = Postgres::open(&with("replicated")).await.unwrap_err();
    assert!(matches!(error, Error::Unfit { .. }), "{error}");
    assert!(error.to_string().contains("synchronous_standby_names"));
    granted(&Postgres::open(&with("local")).await.unwrap(), "k").await;
}

#[tokio::test]
async fn a_database_that_is_read_only_is_refused() {
    let Some(database) = Database::new().await else {
        return;
    };
    let client = database.client().await;
    let name: String = one(&client, "SELECT quote_ident(current_database())").await;
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    client.batch_execute(&read_only).await.unwrap();
    let error = Postgres::open(&database.url).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
}

/// A server whose commits wait for a standby, and a user whose commits would not.
struct Replicated {
    server: Server,
    standby: Child,
    admin: Client,
    /// With `durability=replicated`.
    url: String,
    _log: TempDir,
}

impl Replicated {
    async fn start() -> Option<Self> {
        let server = Server::start()?;
        let log = tempfile::tempdir().unwrap();
        let standby = Command::new("pg_receivewal")
            .args(["--synchronous", "--no-loop", "-d", &server.url(), "-D"])
            .arg(log.path())
            .stdin(Stdio::null())
            .spawn();
        let Ok(standby) = standby else {
            println!("SKIPPED: pg_receivewal, of PostgreSQL's client programs, is missing");
            return None;
        };
        let (admin, driver) = tokio_postgres::connect(&server.url(), NoTls).await.unwrap();
        tokio::spawn(driver);
        for sql in [
            "ALTER SYSTEM SET synchronous_standby_names = '*'",
            "SELECT pg_reload_conf()",
            "CREATE ROLE shop LOGIN SUPERUSER",
            "ALTER ROLE shop SET synchronous_commit = local",
        ] {
            // The statement itself need not wait for the standby.
            admin
                .batch_execute("SET synchronous_commit = local")
                .await
                .unwrap();
            admin.batch_execute(sql).await.unwrap();
        }
        let replicated = Self {
            url: server.url().replace("postgres@", "shop@") + "?durability=replicated",
            server,
            standby,
            admin,
            _log: log,
        };
        let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        replicated.wait_for(synchronous).await;
        Some(replicated)
    }

    /// Polls until a count is not zero.
    async fn wait_for(&self, count: &str) {
        let counted = async {
            // sleeps because the state of another process has no event to wait for
            while one::<i64>(&self.admin, count).await == 0 {
                sleep(POLL).await;
            }
        };
        let counted = timeout(PATIENCE, counted).await;
        counted.unwrap_or_else(|_| panic!("zero for too long: {count}"));
    }

    /// The standby stops confirming, and stays connected.
    fn freeze_standby(&self) {
        self.signal("-STOP");
    }

    fn thaw_standby(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let id = self.standby.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().unwrap();
        assert!(sent.success());
    }

    async fn wait_for_waiting_commit(&self) {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        self.wait_for(waiting).await;
    }
}

impl Drop for Replicated {
    fn drop(&mut self) {
        self.thaw_standby();
        let _ = self.standby.kill();
        let _ = self.standby.wait();
    }
}

async fn one<T: for<'a> tokio_postgres::types::FromSql<'a>>(client: &Client, sql: &str) -> T {
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// The role's own setting is `synchronous_commit = local`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_its_standby_and_one_that_stops_waiting_is_ambiguous() {
    let Some(replicated) = Replicated::start().await else {
        return;
    };
    let store = Postgres::open(&replicated.url).await.unwrap();
    granted(&store, "before").await;

    replicated.freeze_standby();
    let asked = request("cancelled");
    let reserving = tokio::spawn({
        let (store, asked) = (store.clone(), asked.clone());
        async move { store.reserve(asked).await }
    });
    replicated.wait_for_waiting_commit().await;
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
    assert!(one::<bool>(&replicated.admin, cancel).await);
    let reserved = reserving.await.unwrap();
    assert!(
        matches!(reserved, Err(StoreError::Ambiguous { .. })),
        "{reserved:?}"
    );

    // The record is there, and nothing is decided by it until it is replicated.
    let asking = tokio::spawn({
        let (store, asked) = (store.clone(), asked.clone());
        async move { store.reserve(asked).await }
    });
    replicated.wait_for_waiting_commit().await;
    assert!(!asking.is_finished());
    replicated.thaw_standby();
    let decided = asking.await.unwrap().unwrap();
    assert!(matches!(decided, Decision::InProgress(_)), "{decided:?}");
    granted(&store, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_transaction_of_an_application_waits_for_its_standby() {
    let Some(replicated) = Replicated::start().await else {
        return;
    };
    let store = Postgres::open(&replicated.url).await.unwrap();
    let fence = grant(&store, request("k")).await.fence;
    let url = replicated.server.url().replace("postgres@", "shop@");
    let (client, driver) = tokio_postgres::connect(&url, NoTls).await.unwrap();
    tokio::spawn(driver);
    assert_eq!(
        one::<String>(&client, "SHOW synchronous_commit").await,
        "local"
    );
    replicated.freeze_standby();
    let open = OpenTransaction::begin(Box::new(client)).await.unwrap();
    let complete = Box::new(|_| Some(TransactionWrite::Complete(completion("{}"))));
    let finishing = tokio::spawn(Box::new(open).finish(fence, complete));
    replicated.wait_for_waiting_commit().await;
    assert!(!finishing.is_finished());
    replicated.thaw_standby();
    let finished = finishing.await.unwrap().unwrap();
    assert_eq!(
        finished,
        semel_core::transaction::Finished::Held(Held::Applied)
    );
}

/// The check is made by another connection than the writes, and either may be the older one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_stops_replicating_is_refused_also_after_a_connection_broke() {
    let Some(replicated) = Replicated::start().await else {
        return;
    };
    let store = Postgres::open(&replicated.url).await.unwrap();
    replicated.freeze_standby();
    let breaking = tokio::spawn({
        let store = store.clone();
        async move { store.reserve(request("broken")).await }
    });
    replicated.wait_for_waiting_commit().await;
    let terminate = "SELECT count(pg_terminate_backend(pid, 30000)) FROM pg_stat_activity
        WHERE wait_event = 'SyncRep'";
    assert_eq!(one::<i64>(&replicated.admin, terminate).await, 1);
    replicated.thaw_standby();
    breaking.await.unwrap().unwrap_err();
    let mut keys = (0..).map(|nth| request(&format!("k-{nth}")));
    let mut is_refused = async || store.reserve(keys.next().unwrap()).await.is_err();
    let reopened = async { while is_refused().await {} };
    timeout(PATIENCE, reopened).await.unwrap();

    for sql in [
        "ALTER SYSTEM RESET synchronous_standby_names",
        "SELECT pg_reload_conf()",
    ] {
        replicated.admin.batch_execute(sql).await.unwrap();
    }
    let refused = async {
        let mut in_a_row = 0;
        // A new connection is refused at once; here it is those that were open.
        while in_a_row < 20 {
            in_a_row = if is_refused().await { in_a_row + 1 } else { 0 };
            // sleeps because the store checks a real server in the background
            sleep(POLL).await;
        }
    };
    let refused = timeout(PATIENCE, refused).await;
    refused.expect("the store refuses a server that does not replicate");
}

/// A pooler in front of a server.
struct Pooler {
    process: Child,
    url: String,
    _directory: TempDir,
}

impl Pooler {
    /// Prints SKIPPED and returns `None` where the program is missing.
    async fn start(database: &Database, mode: &str) -> Option<Self> {
        let Some((_, server)) = database.url.rsplit_once('@') else {
            panic!("{} names no user", database.url);
        };
        let (server, name) = server.split_once('/').unwrap();
        let name = name.split('?').next().unwrap();
        let (host, server_port) = server.rsplit_once(':').unwrap();
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pgbouncer.ini");
        let settings = format!(
            "[databases]\n{name} = host={host} port={server_port} user=postgres\n[pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n\
             pool_mode = {mode}\ndefault_pool_size = 20\n"
        );
        std::fs::write(&file, settings).unwrap();
        // It refuses to run as root.
        let mut permissions = std::fs::metadata(directory.path()).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o755);
        std::fs::set_permissions(directory.path(), permissions).unwrap();
        let process = Command::new("pgbouncer")
            .args(["--quiet", "--user=nobody"])
            .arg(&file)
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stdin(Stdio::null())
            .spawn();
        let Ok(process) = process else {
            println!("SKIPPED: pgbouncer is missing");
            return None;
        };
        let address = format!("127.0.0.1:{port}");
        // sleeps because the program announces nothing when it listens
        while tokio::net::TcpStream::connect(&address).await.is_err() {
            sleep(POLL).await;
        }
        Some(Self {
            process,
            url: format!("postgres://postgres@{address}/{name}"),
            _directory: directory,
        })
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test]
async fn a_pooler_in_session_mode_is_used_and_one_in_transaction_mode_is_refused() {
    let Some(database) = Database::new().await else {
        return;
    };
    let Some(pooler) = Pooler::start(&database, "session").await else {
        return;
    };
    let store = Postgres::open(&pooler.url).await.unwrap();
    let fence = granted(&store, "k").await;
    let held = store.complete(fence, completion("{}")).await.unwrap();
    assert_eq!(held, Held::Applied);
    for mode in ["transaction", "statement"] {
        let pooler = Pooler::start(&database, mode).await.unwrap();
        let error = Postgres::open(&pooler.url).await.unwrap_err();
        assert!(
            error.to_string().contains("pooler") || mode == "statement",
            "{error}"
        );
    }
}
