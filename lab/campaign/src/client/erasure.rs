//! Responses that operators erase, and retries that must not get them any more.

use semel_campaign_checker::history::{Erasure, Outcome, Sent};
use serde_json::json;

use super::Client;
use crate::http::{self, SendMode};
use crate::operation::{Operation, OperationIndex};

impl Client {
    /// Erases the response of a finished operation, as an operator does, and retries the operation.
    pub(super) async fn erase(&mut self, operation: &Operation, index: OperationIndex) {
        let request = operation.request(None, &mut self.random);
        let sent = self.send(operation, &request, SendMode::Normal, Sent::Same);
        let answer = sent.await;
        let (Outcome::Ok, Some(id)) = (answer.outcome, answer.id) else {
            return;
        };
        let path = format!("/api/v1/operations/{id}/erase");
        let decision = json!({ "reason": "a deletion request", "by": "campaign" });
        let erased = http::ask(self.shared.admin, &path, Some(&decision)).await;
        let recorder = &self.shared.recorder;
        // Without an answer it may have been erased.
        recorder.erasure(Erasure {
            op: operation.number,
            acknowledged_ms: erased.is_ok().then(|| recorder.now_ms()),
        });
        // Only now: other clients retry what is known to be erased.
        self.shared.operations.erase(index);
        self.ask_again(operation).await;
    }

    /// Retries once.
    pub(crate) async fn ask_again(&mut self, operation: &Operation) {
        self.call(operation, None, SendMode::Normal).await;
    }
}
