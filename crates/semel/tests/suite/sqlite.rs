//! A handler's rows and its response in one commit.

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::State;
use axum::http::{HeaderMap, Request, StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::routing::post;

use semel::sqlite::rusqlite::{self, Connection};
use semel::{CommitWith, Layer, Operation, Outcome, Resource, Sqlite};
use semel_seal::Sealed;
use tempfile::TempDir;
use tower::ServiceExt as _;

const KEYS: &str = "test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

struct Fixture {
    app: Router,
    reads: Connection,
    _directory: TempDir,
}

/// The body of the request selects what the handler does.
async fn pay(operation: Operation, State(store): State<Sqlite>, body: String) -> CommitWith<Body> {
    let same = operation.clone();
    let is_charged = body == "charged elsewhere, fails";
    let commit = semel::sqlite::in_transaction(operation, &store, move |connection| {
        let balance: i64 =
            connection.query_row("SELECT cents FROM balance", [], |row| row.get(0))?;
        if balance < 40 {
            return Ok((StatusCode::PAYMENT_REQUIRED, "insufficient funds").into_response());
        }
        connection.execute("UPDATE balance SET cents = cents - 40", [])?;
        Ok::<_, rusqlite::Error>(match body.as_str() {
            "fails" | "charged elsewhere, fails" => {
                connection.execute("INSERT INTO nowhere VALUES (1)", [])?;
                unreachable!()
            }
            "panics" => panic!("on purpose"),
            "busy" => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            "not executed" => Outcome::not_executed("changed_its_mind").into_response(),
            "streams" => {
                let chunks = futures_util::stream::pending::<Result<Bytes, std::io::Error>>();
                Body::from_stream(chunks).into_response()
            }
            _ => created(&same),
        })
    });
    if is_charged {
        return commit.with_foreign_effects();
    }
    commit
}

fn created(operation: &Operation) -> Response {
    let answer = (
        StatusCode::CREATED,
        [("location", "/payments/1"), ("x-cost", "7")],
        operation.id().to_string(),
    );
    let mut answer = answer.into_response();
    answer.extensions_mut().insert(Resource {
        kind: "payment".into(),
        id: "1".into(),
    });
    answer
}

fn account(head: &Parts) -> Option<String> {
    Some(head.headers.get("x-account-id")?.to_str().ok()?.to_owned())
}

impl Fixture {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let store = Sqlite::open(&path).await.unwrap();
        let reads = Connection::open(&path).unwrap();
        reads
            .execute_batch(
                "CREATE TABLE balance (cents INTEGER NOT NULL);
                 INSERT INTO balance VALUES (100);",
            )
            .unwrap();
        // The layer's records are sealed; the handler's own rows are not.
        let sealed = Sealed::new(store.clone(), Some(KEYS.parse().unwrap()));
        let layer = Layer::new(sealed)
            .tenant(account)
            .route("POST /payments", |route| route.operation("create_payment"));
        let app = Router::new()
            .route("/payments", post(pay))
            .with_state(store)
            .layer(layer);
        Self {
            app,
            reads,
            _directory: directory,
        }
    }

    async fn send(&self, key: &str, body: &'static str) -> (StatusCode, HeaderMap, String) {
        let request = Request::post("/payments")
            .header("x-account-id", "acme")
            .header("idempotency-key", format!("\"{key}\""))
            .body(Body::from(body))
            .unwrap();
        let answer = self.app.clone().oneshot(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        (
            head.status,
            head.headers,
            String::from_utf8(body.to_vec()).unwrap(),
        )
    }

    fn balance(&self) -> i64 {
        self.reads
            .query_row("SELECT cents FROM balance", [], |row| row.get(0))
            .unwrap()
    }

    /// The only record's status, error and resource.
    fn record(&self, key: &str) -> (String, Option<String>, Option<String>) {
        self.reads
            .query_row(
                "SELECT status, error_code, resource_id FROM semel_operations WHERE key = ?1",
                [key],
                |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
            )
            .unwrap()
    }
}

#[tokio::test]
async fn rows_and_response_are_committed_together() {
    let fixture = Fixture::new().await;
    let (status, headers, first) = fixture.send("k1", "pays").await;
    assert_eq!(status, StatusCode::CREATED);
    assert_eq!(headers["location"], "/payments/1");
    // The first caller gets all headers of the handler, and the time until which it may retry.
    assert_eq!(headers["x-cost"], "7");
    assert!(headers.contains_key("idempotency-key-expires"));
    assert!(!headers.contains_key("idempotent-replayed"));
    assert_eq!(fixture.balance(), 60);
    let completed = ("completed".to_owned(), None, Some("1".to_owned()));
    assert_eq!(fixture.record("k1"), completed);
    let stored: Vec<u8> = fixture
        .reads
        .query_row("SELECT response_body FROM semel_operations", [], |row| {
            row.get(0)
        })
        .unwrap();
    let shown = |text: &str| {
        stored
            .windows(text.len())
            .any(|part| part == text.as_bytes())
    };
    assert!(
        shown("test") && !shown(&first),
        "sealed, with the name of its key"
    );

    let (status, headers, again) = fixture.send("k1", "pays").await;
    assert_eq!((status, again), (StatusCode::CREATED, first));
    assert_eq!(headers["idempotent-replayed"], "true");
    assert_eq!(fixture.balance(), 60);

    // The statements decide the response, and a refusal completes the operation, too.
    assert_eq!(fixture.send("k2", "pays").await.0, StatusCode::CREATED);
    for replayed in [false, true] {
        let (status, headers, body) = fixture.send("k3", "pays").await;
        assert_eq!(status, StatusCode::PAYMENT_REQUIRED);
        assert_eq!(body, "insufficient funds");
        assert_eq!(headers.contains_key("idempotent-replayed"), replayed);
    }
    assert_eq!(fixture.balance(), 20);
}

#[tokio::test]
async fn rows_are_rolled_back_where_the_operation_is_not_completed() {
    let fixture = Fixture::new().await;
    let released = |code: &str| ("failed_retryable".to_owned(), Some(code.to_owned()), None);
    let unknown = |code: &str| ("unknown".to_owned(), Some(code.to_owned()), None);
    for (does, status, code, record) in [
        (
            "fails",
            503,
            "operation_not_executed",
            released("transaction_rolled_back"),
        ),
        (
            "panics",
            503,
            "operation_not_executed",
            released("transaction_rolled_back"),
        ),
        (
            "streams",
            503,
            "operation_not_executed",
            released("transaction_rolled_back"),
        ),
        (
            "not executed",
            503,
            "operation_not_executed",
            released("changed_its_mind"),
        ),
        ("busy", 503, "", unknown("status_503")),
        (
            "charged elsewhere, fails",
            504,
            "idempotency_outcome_unknown",
            unknown("transaction_rolled_back"),
        ),
    ] {
        let (answered, _, body) = fixture.send(does, does).await;
        assert_eq!(answered.as_u16(), status, "{does}: {body}");
        assert!(body.contains(code), "{does}: {body}");
        assert_eq!(fixture.balance(), 100, "{does}");
        assert_eq!(fixture.record(does), record, "{does}");
    }
}
