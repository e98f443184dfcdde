//! A PostgreSQL database for a test, on the server that `cargo xtask test` starts.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use semel_core::OperationId;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

/// The environment variable with the server's address.
pub const VARIABLE: &str = "SEMEL_TEST_POSTGRES_URL";

const CREATE: &str = include_str!("../queries/create_database.sql");
const DROP: &str = include_str!("../queries/drop_database.sql");
const END_OTHERS: &str = include_str!("../queries/end_others.sql");
const EMPTY: &str = include_str!("../queries/empty.sql");
const LOCK_POOLED: &str = include_str!("../queries/lock_pooled.sql");

/// The name by which `end_others.sql` knows the testkit's own connections.
const APPLICATION_NAME: &str = "semel-testkit";

/// How often the pool is searched before a database is added to it. The connection that held a
/// database may need a moment to end.
const POOL_SEARCHES: u32 = 4;

/// The pause between two searches of the pool: creating a database takes much longer.
const POOL_PAUSE: Duration = Duration::from_millis(20);

/// Most databases in the pool. Each has a store with several connections.
const POOL_SIZE: u32 = 64;

/// The server's URL. Prints SKIPPED and returns `None` without one.
pub fn server() -> Option<String> {
    let url = std::env::var(VARIABLE).ok().filter(|url| !url.is_empty());
    if url.is_none() {
        println!("SKIPPED: {VARIABLE} names no server; run `cargo xtask test`");
    }
    url
}

/// An empty database of the test's own, removed when it is dropped.
#[derive(Debug)]
pub struct Database {
    /// Where it is.
    pub url: String,
    server: String,
    name: String,
}

/// A database of the [pool](Database::pooled). Dropping it gives it back.
#[derive(Debug)]
pub struct Pooled {
    /// Where it is.
    pub url: String,
    /// Holds the lock that keeps other tests out.
    _lock: Client,
}

impl Database {
    /// A new database; `None` without a server.
    ///
    /// # Cancellation
    /// Dropping the future may leave a database behind.
    pub async fn new() -> Option<Self> {
        Some(Self::on(&server()?).await)
    }

    /// A new one on a certain server.
    ///
    /// # Cancellation
    /// Dropping the future may leave a database behind.
    pub async fn on(server: &str) -> Self {
        // Not by the number of the process: it comes back, and a test that was killed leaves its
        // database behind.
        let unique = OperationId::generate().to_string().replace('-', "_");
        let name = format!("semel_test_{unique}");
        let admin = client(server).await;
        let create = CREATE.replace("NAME", &name);
        admin.batch_execute(&create).await.unwrap();
        let (base, _) = server.rsplit_once('/').unwrap();
        Self {
            url: format!("{base}/{name}"),
            server: server.to_owned(),
            name,
        }
    }

    /// An empty database for one case of a suite, from a pool that all test processes share; nothing
    /// where there is no server. Creating and dropping a database takes a second or more on a busy
    /// disk, and emptying one milliseconds. Each `schema` version has a pool of its own.
    ///
    /// The pool stays on the server. `cargo xtask test` starts a server for each run.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn pooled(schema: &str) -> Option<Pooled> {
        let server = server()?;
        let mut hasher = DefaultHasher::new();
        schema.hash(&mut hasher);
        let pool = format!("semel_pool_{:016x}", hasher.finish());
        for search in 1..=POOL_SEARCHES {
            for nth in 0..POOL_SIZE {
                let name = format!("{pool}_{nth}");
                match Pooled::lock(&server, &name).await {
                    Found::Free(database) => return Some(database),
                    Found::Busy => {}
                    Found::Missing if search < POOL_SEARCHES => break,
                    Found::Missing => {
                        // Another process may create it at the same time; then one of the two
                        // locks it, and the other continues with the next.
                        let admin = client(&server).await;
                        let _ = admin.batch_execute(&CREATE.replace("NAME", &name)).await;
                        if let Found::Free(database) = Pooled::lock(&server, &name).await {
                            return Some(database);
                        }
                    }
                }
            }
            // sleeps because another process returns its database without an event here.
            tokio::time::sleep(POOL_PAUSE).await;
        }
        panic!("all {POOL_SIZE} databases of the pool {pool} are in use");
    }

    /// A connection to it.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn client(&self) -> Client {
        client(&self.url).await
    }
}

/// The result of looking up one name in the pool.
enum Found {
    Free(Pooled),
    Busy,
    Missing,
}

impl Pooled {
    /// Locks and empties the database, if it exists and is free.
    async fn lock(server: &str, name: &str) -> Found {
        let (base, _) = server.rsplit_once('/').unwrap();
        let url = format!("{base}/{name}");
        let lock = match try_client(&url).await {
            Ok(lock) => lock,
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_DATABASE) => {
                return Found::Missing;
            }
            // The test that has just locked it ended all other connections, this one included.
            Err(error) if error.code() == Some(&SqlState::ADMIN_SHUTDOWN) => return Found::Busy,
            Err(error) => panic!("cannot connect to {name}: {error:?}"),
        };
        let row = match lock.query_one(LOCK_POOLED, &[]).await {
            Ok(row) => row,
            Err(error) if error.code() == Some(&SqlState::ADMIN_SHUTDOWN) => return Found::Busy,
            Err(error) => panic!("cannot lock {name}: {error:?}"),
        };
        let (is_free, has_schema): (bool, bool) = (row.get(0), row.get(1));
        if !is_free {
            return Found::Busy;
        }
        if has_schema {
            lock.query(END_OTHERS, &[]).await.unwrap();
            lock.batch_execute(EMPTY).await.unwrap();
        }
        Found::Free(Self { url, _lock: lock })
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let (server, name) = (self.server.clone(), self.name.clone());
        // A thread of its own: the test's runtime may be going down.
        let removal = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async move {
                // A server that a test stopped keeps its databases.
                if let Ok((admin, driver)) = tokio_postgres::connect(&server, NoTls).await {
                    tokio::spawn(driver);
                    let _ = admin.batch_execute(&DROP.replace("NAME", &name)).await;
                }
            });
        });
        let _ = removal.join();
    }
}

/// A connection to any database.
///
/// # Cancellation
/// Dropping the future is harmless.
pub async fn client(url: &str) -> Client {
    try_client(url).await.unwrap()
}

async fn try_client(url: &str) -> Result<Client, tokio_postgres::Error> {
    let mut config: Config = url.parse()?;
    let (client, driver) = config
        .application_name(APPLICATION_NAME)
        .connect(NoTls)
        .await?;
    tokio::spawn(driver);
    Ok(client)
}
