//! The application behind the gateway. It ignores keys: every execution makes a new charge at the
//! provider of the payments example, so that a second execution is a second charge. Tests count the
//! charges in the provider's ledger, a file that it syncs before it answers.

use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::http::{Connection, ask, request};

#[derive(Clone)]
pub(crate) struct Shop {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    ledger: PathBuf,
    provider: SocketAddr,
    _directory: tempfile::TempDir,
    /// Executions that have begun.
    executions: watch::Sender<usize>,
    /// While false, the application charges and does not answer.
    open: watch::Sender<bool>,
}

impl Shop {
    pub(crate) async fn open() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ledger = directory.path().join("ledger.jsonl");
        let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let provider_address = provider.local_addr().unwrap();
        let config = payments::provider::Config::with_ledger(ledger.clone());
        tokio::spawn(payments::provider::serve(provider, config, pending()));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shop = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::new(State {
                ledger,
                provider: provider_address,
                _directory: directory,
                executions: watch::Sender::new(0),
                open: watch::Sender::new(true),
            }),
        };
        let state = Arc::clone(&shop.state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&state)));
            }
        });
        shop
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// While held, the application charges and does not answer.
    pub(crate) fn hold(&self, held: bool) {
        self.state.open.send_replace(!held);
    }

    pub(crate) fn charges(&self, reference: &str) -> usize {
        self.count(&format!("\"reference\":\"{reference}\""))
    }

    pub(crate) fn all_charges(&self) -> usize {
        self.count("\"reference\":")
    }

    /// How often a text occurs in the ledger, which has one entry per line.
    fn count(&self, text: &str) -> usize {
        let ledger = std::fs::read_to_string(&self.state.ledger).unwrap_or_default();
        ledger.matches(text).count()
    }

    pub(crate) fn executions(&self) -> usize {
        *self.state.executions.borrow()
    }

    /// Waits until this many executions have begun.
    pub(crate) async fn wait_for_executions(&self, count: usize) {
        let mut executions = self.state.executions.subscribe();
        executions.wait_for(|begun| *begun >= count).await.unwrap();
    }
}

/// Serves a connection until it closes. Every complete request is charged, also after a disconnect.
async fn serve(stream: TcpStream, state: Arc<State>) {
    let mut connection = Connection::accepted(stream);
    while let Ok(received) = connection.read().await {
        let mut number = 0;
        state.executions.send_modify(|begun| {
            *begun += 1;
            number = *begun;
        });
        // Lets a test act between the start of the execution and the charge.
        tokio::task::yield_now().await;
        let reference = received.member("reference").unwrap();
        let charge =
            format!("{{\"amount\":100,\"currency\":\"EUR\",\"reference\":\"{reference}\"}}");
        let charge = request("/charges", &format!("execution-{number}"), &charge);
        let charged = ask(state.provider, &charge).await.unwrap();
        assert_eq!(charged.status(), 201, "{charged:?}");
        let mut open = state.open.subscribe();
        open.wait_for(|open| *open).await.unwrap();
        // The number differs for each execution, so a second one cannot look like a replay.
        let body = format!("{{\"id\":\"pay_{number}\",\"reference\":\"{reference}\"}}");
        let answer = format!(
            "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\n\
             Location: /payments/pay_{number}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if connection
            .stream()
            .write_all(answer.as_bytes())
            .await
            .is_err()
        {
            return;
        }
    }
}
