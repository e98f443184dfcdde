//! The command that is made of phases: a price is asked for, and then the one call is made that
//! must not be made twice. Its provider would do it twice.

use std::sync::Arc;

use http::Response;
use semel_http::{Downstream, Operation, Outcome, Stopped};

use super::{Flow, Reset, Way, answer, ask_provider};
use crate::process::Process;
use crate::provider::{Call, Charge};
use crate::world::{World, lock};

pub(super) async fn go(
    world: &Arc<World>,
    process: &Arc<Process>,
    way: Way,
    operation: Operation,
    call: Call,
) -> Result<Response<Flow>, Reset> {
    match phases(world, process, way, operation, call).await {
        Ok(number) => {
            let entry = lock(&world.ledger).entry(number).cloned();
            answer(process, way, &entry.ok_or(Reset)?)
        }
        Err(stopped) => Ok(stopped.into_response()),
    }
}

/// The number of the entry.
async fn phases(
    world: &Arc<World>,
    process: &Arc<Process>,
    way: Way,
    operation: Operation,
    call: Call,
) -> Result<usize, Stopped> {
    let (mut phases, amount) = operation.begin(call.amount)?;
    let call = Call { amount, ..call };
    let asking = |_| async {
        work(world, process).await;
        Ok(1)
    };
    let _: u64 = phases.call("price", Downstream::Idempotent, asking).await?;
    let charging = |_| async {
        work(world, process).await;
        charge(world, process, way, call.clone()).await
    };
    phases
        .call("charge", Downstream::NotIdempotent, charging)
        .await
}

async fn work(world: &World, process: &Process) {
    world.mishap(process);
    process.step().await;
    world.dawdle(0, 40).await;
    process.step().await;
}

async fn charge(
    world: &Arc<World>,
    process: &Process,
    way: Way,
    call: Call,
) -> Result<usize, Outcome> {
    match way {
        Way::SaysNotExecuted | Way::SaysForget | Way::Unreachable => {
            return Err(Outcome::not_executed("not_sent"));
        }
        Way::TimesOutBefore | Way::ResetBefore => return Err(Outcome::unknown("lost")),
        Way::PanicsBefore => std::panic::resume_unwind(Box::new("an application that panics")),
        Way::Well
        | Way::Declined
        | Way::TooLargeToStore
        | Way::Late
        | Way::SaysUnknownAfter
        | Way::TimesOutAfter
        | Way::Fails500After
        | Way::ResetAfter
        | Way::BreaksOff
        | Way::PanicsAfter
        | Way::GivesUpOnProvider => {}
    }
    let called = ask_provider(world, way, call);
    if way == Way::GivesUpOnProvider {
        world.dawdle(10, 500).await;
        return Err(Outcome::unknown("no_answer"));
    }
    let charge = called.await.map_err(|_| Outcome::unknown("no_answer"))?;
    if way == Way::Late {
        world.dawdle(1000, 15_000).await;
    }
    world.mishap(process);
    process.step().await;
    match charge {
        Charge::Happened(_) if way == Way::TimesOutAfter => Err(Outcome::unknown("no_answer")),
        Charge::Happened(entry) => Ok(entry.number),
        // Called off: it is proven that this attempt did nothing.
        Charge::Voided => Err(Outcome::not_executed("called_off")),
    }
}
