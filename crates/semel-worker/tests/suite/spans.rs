//! Log lines of a lookup carry the record's id.

use std::io;
use std::sync::{Arc, Mutex};

use semel_core::Record;
use semel_worker::{Lookup, Reconcile, Schedule};
use tracing::level_filters::LevelFilter;

use crate::support::{Fixture, PAY, paid};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A provider whose client logs.
struct LoggingProvider;

impl Reconcile for LoggingProvider {
    async fn look_up(&self, _: &Record) -> Lookup {
        tracing::error!("the provider is asked");
        paid()
    }
}

#[tokio::test]
async fn every_log_line_of_a_lookup_names_its_record() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_max_level(LevelFilter::INFO)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let fixture = Fixture::new();
    let fence = fixture.unknown(PAY, "k").await;
    let worker = fixture.worker_with(Schedule::default(), LoggingProvider);
    assert_eq!(worker.reconcile_once().await.unwrap().completed, 1);
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    for what in ["the provider is asked", "resolved an unknown record"] {
        let line = text.lines().find(|line| line.contains(what)).unwrap();
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["span"]["name"], "reconcile");
        assert_eq!(line["span"]["semel.operation.id"], fence.id.to_string());
        assert_eq!(line["span"]["semel.operation"], PAY);
    }
}
