//! Calls that are under way.

use semel_campaign_checker::history::Call;

use crate::record::Recorder;

/// A call that is recorded when it ends, also where its client gives it up: it may have been executed.
pub(super) struct PendingCall {
    pub(super) recorder: Recorder,
    pub(super) call: Call,
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        self.call.ended_ms = self.recorder.now_ms();
        self.recorder.call(self.call.clone());
    }
}
