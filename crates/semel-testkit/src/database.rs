//! A PostgreSQL database for a test, on the server that `cargo xtask test` starts.

use std::sync::{Mutex, PoisonError};

use semel_core::OperationId;
use tokio_postgres::{Client, NoTls};

/// What tests read the server's address from.
pub const VARIABLE: &str = "SEMEL_TEST_POSTGRES_URL";

const CREATE: &str = include_str!("../queries/create_database.sql");
const DROP: &str = include_str!("../queries/drop_database.sql");
const END_OTHERS: &str = include_str!("../queries/end_others.sql");
const EMPTY: &str = include_str!("../queries/empty.sql");

/// Databases that were used and may be used again, by this process.
static USED: Mutex<Vec<Database>> = Mutex::new(Vec::new());

/// Where the server is; nothing, with a word about it, where there is none.
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

/// A database that goes back to where it came from when it is dropped.
#[derive(Debug)]
pub struct Reused(Option<Database>);

impl Database {
    /// A new one; nothing where there is no server.
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

    /// One that was used before in this process and is empty again, or a new one: for tests that
    /// need hundreds.
    ///
    /// # Cancellation
    /// Dropping the future may leave a database behind.
    pub async fn reused() -> Option<Reused> {
        let used = USED.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let Some(database) = used else {
            return Some(Reused(Some(Self::new().await?)));
        };
        let client = database.client().await;
        client.query(END_OTHERS, &[]).await.unwrap();
        client.batch_execute(EMPTY).await.unwrap();
        Some(Reused(Some(database)))
    }

    /// A connection to it.
    ///
    /// # Cancellation
    /// Dropping the future is harmless.
    pub async fn client(&self) -> Client {
        client(&self.url).await
    }
}

impl std::ops::Deref for Reused {
    type Target = Database;

    fn deref(&self) -> &Database {
        self.0.as_ref().unwrap()
    }
}

impl Drop for Reused {
    fn drop(&mut self) {
        let mut used = USED.lock().unwrap_or_else(PoisonError::into_inner);
        used.extend(self.0.take());
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
    let (client, driver) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(driver);
    client
}
