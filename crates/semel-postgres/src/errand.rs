//! What is asked one at a time: looks, verdicts and the workers' batches.

use std::future::Future;
use std::pin::Pin;

use semel_core::store::Result;
use tokio::sync::oneshot;

use crate::connection::Session;
use crate::error::{Failure, unavailable};
use crate::lane::Kind;
use crate::time::Time;

/// Something to be done with a connection.
pub(crate) trait Command: Send + 'static {
    type Answer: Send + 'static;

    /// Whether it may have been done although its answer was lost.
    const WRITES: bool;

    async fn perform(
        &self,
        session: &mut Session,
        time: &Time,
    ) -> std::result::Result<Self::Answer, Failure>;
}

/// A command whose caller waits.
pub(crate) trait Errand: Send {
    /// Does it, and tells the caller.
    fn run<'a>(
        &'a mut self,
        session: &'a mut Session,
        time: &'a Time,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<(), Failure>> + 'a>>;

    fn tries(&mut self) -> &mut u32;

    fn fail(self: Box<Self>, failure: Failure);

    fn refuse(self: Box<Self>, reason: &str);
}

/// Packs a command for a lane.
pub(crate) fn errand<C: Command>(
    command: C,
) -> (Box<dyn Errand>, oneshot::Receiver<Result<C::Answer>>) {
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
    fn tell(&mut self, answer: Result<C::Answer>) {
        if let Some(reply) = self.reply.take() {
            // Whoever asked may be gone.
            let _ = reply.send(answer);
        }
    }
}

impl<C: Command> Errand for Pending<C> {
    fn run<'a>(
        &'a mut self,
        session: &'a mut Session,
        time: &'a Time,
    ) -> Pin<Box<dyn Future<Output = std::result::Result<(), Failure>> + 'a>> {
        Box::pin(async move {
            let answer = self.command.perform(session, time).await?;
            self.tell(Ok(answer));
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
        self.tell(Err(error));
    }

    fn refuse(mut self: Box<Self>, reason: &str) {
        self.tell(Err(unavailable(reason, None)));
    }
}

/// The lanes for errands.
pub(crate) struct Running;

impl Kind for Running {
    type Call = Box<dyn Errand>;

    /// Each is a statement of its own.
    const MOST: usize = 1;

    fn batch(waiting: &mut Vec<Box<dyn Errand>>) -> Vec<Box<dyn Errand>> {
        std::mem::take(waiting)
    }

    async fn perform(
        session: &mut Session,
        time: &Time,
        batch: &mut Vec<Box<dyn Errand>>,
    ) -> std::result::Result<(), Failure> {
        if let Some(errand) = batch.first_mut() {
            errand.run(session, time).await?;
        }
        batch.clear();
        Ok(())
    }

    fn tries(call: &mut Box<dyn Errand>) -> &mut u32 {
        call.tries()
    }

    fn fail(call: Box<dyn Errand>, failure: Failure) {
        call.fail(failure);
    }

    fn refuse(call: Box<dyn Errand>, reason: &str) {
        call.refuse(reason);
    }
}
