//! Commands that run one at a time: lookups, verdicts and the background jobs' batches.

use std::future::Future;
use std::pin::Pin;

use semel_core::store::Result;
use tokio::sync::oneshot;

use crate::connection::Session;
use crate::connection_worker::Workload;
use crate::error::{Failure, unavailable};
use crate::time::Time;

/// A call that has statements of its own.
pub(crate) trait Command: Send + 'static {
    type Answer: Send + 'static;

    /// Whether it may have taken effect although its answer was lost.
    const WRITES: bool;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<Self::Answer, Failure>;
}

/// A command in a queue, whose caller waits.
pub(crate) trait QueuedCommand: Send {
    /// Performs the command and answers the caller.
    fn run<'a>(
        &'a mut self,
        session: &'a mut Session,
        time: &'a Time,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<(), Failure>> + 'a>>;

    fn tries(&mut self) -> &mut u32;

    fn fail(self: Box<Self>, failure: Failure);

    fn refuse(self: Box<Self>, reason: &str);
}

/// Packs a command for a queue.
pub(crate) fn queued<C: Command>(
    command: C,
) -> (Box<dyn QueuedCommand>, oneshot::Receiver<Result<C::Answer>>) {
    let (reply, answer) = oneshot::channel();
    let pending = Pending {
        command,
        reply: Some(reply),
        tries: 0,
    };
    (Box::new(pending), answer)
}

struct Pending<C: Command> {
    command: C,
    reply: Option<oneshot::Sender<Result<C::Answer>>>,
    tries: u32,
}

impl<C: Command> Pending<C> {
    fn answer(&mut self, answer: Result<C::Answer>) {
        if let Some(reply) = self.reply.take() {
            // The caller may have been dropped.
            let _ = reply.send(answer);
        }
    }
}

impl<C: Command> QueuedCommand for Pending<C> {
    fn run<'a>(
        &'a mut self,
        session: &'a mut Session,
        time: &'a Time,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<(), Failure>> + 'a>> {
        Box::pin(async move {
            let answer = self.command.perform(session, time).await?;
            session.check_replicated()?;
            self.answer(Ok(answer));
            Ok(())
        })
    }

    fn tries(&mut self) -> &mut u32 {
        &mut self.tries
    }

    fn fail(mut self: Box<Self>, failure: Failure) {
        let error = if C::WRITES {
            failure.of_write()
        } else {
            failure.of_read()
        };
        self.answer(Err(error));
    }

    fn refuse(mut self: Box<Self>, reason: &str) {
        self.answer(Err(unavailable(reason, None)));
    }
}

/// The workload of the workers that run commands.
pub(crate) struct Commands;

impl Workload for Commands {
    type Call = Box<dyn QueuedCommand>;

    /// Each has statements of its own.
    const MAX_BATCH: usize = 1;

    fn batch(waiting: &mut Vec<Box<dyn QueuedCommand>>) -> Vec<Box<dyn QueuedCommand>> {
        std::mem::take(waiting)
    }

    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<Box<dyn QueuedCommand>>,
    ) -> std::result::Result<(), Failure> {
        if let Some(command) = batch.first_mut() {
            command.run(session, time).await?;
        }
        batch.clear();
        Ok(())
    }

    fn tries(call: &mut Box<dyn QueuedCommand>) -> &mut u32 {
        call.tries()
    }

    fn fail(call: Box<dyn QueuedCommand>, failure: Failure) {
        call.fail(failure);
    }

    fn refuse(call: Box<dyn QueuedCommand>, reason: &str) {
        call.refuse(reason);
    }
}
