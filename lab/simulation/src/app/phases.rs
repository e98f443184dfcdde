//! The operation with phases: it asks for a price, and then makes the one call that must not be
//! repeated, since the provider would execute it twice.

use std::sync::Arc;

use http::Response;
use semel_http::{Downstream, Operation, Outcome, Stopped};

use super::{Behaviour, BreakingBody, Reset, answer, call_provider};
use crate::process::Process;
use crate::provider::{Call, Charge};
use crate::scenario::{Scenario, lock};

pub(super) async fn execute(
    scenario: &Arc<Scenario>,
    process: &Arc<Process>,
    behaviour: Behaviour,
    operation: Operation,
    call: Call,
) -> Result<Response<BreakingBody>, Reset> {
    match phases(scenario, process, behaviour, operation, call).await {
        Ok(number) => {
            let entry = lock(&scenario.ledger).entry(number).cloned();
            answer(process, behaviour, &entry.ok_or(Reset)?)
        }
        Err(stopped) => Ok(stopped.into_response()),
    }
}

/// Runs the phases. Returns the number of the ledger's entry.
async fn phases(
    scenario: &Arc<Scenario>,
    process: &Arc<Process>,
    behaviour: Behaviour,
    operation: Operation,
    call: Call,
) -> Result<usize, Stopped> {
    let (mut phases, amount) = operation.begin(call.amount)?;
    let call = Call { amount, ..call };
    let asking = |_| async {
        work(scenario, process).await;
        Ok(1)
    };
    let _: u64 = phases.call("price", Downstream::Idempotent, asking).await?;
    let charging = |_| async {
        work(scenario, process).await;
        charge(scenario, process, behaviour, call.clone()).await
    };
    phases
        .call("charge", Downstream::NotIdempotent, charging)
        .await
}

async fn work(scenario: &Scenario, process: &Process) {
    scenario.inject_mishap(process);
    process.step().await;
    scenario.sleep_random(0, 40).await;
    process.step().await;
}

async fn charge(
    scenario: &Arc<Scenario>,
    process: &Process,
    behaviour: Behaviour,
    call: Call,
) -> Result<usize, Outcome> {
    match behaviour {
        Behaviour::SaysNotExecuted | Behaviour::SaysForget | Behaviour::Unreachable => {
            return Err(Outcome::not_executed("not_sent"));
        }
        Behaviour::TimesOutBefore | Behaviour::ResetBefore => return Err(Outcome::unknown("lost")),
        Behaviour::PanicsBefore => {
            std::panic::resume_unwind(Box::new("an application that panics"))
        }
        Behaviour::Well
        | Behaviour::Declined
        | Behaviour::TooLargeToStore
        | Behaviour::Late
        | Behaviour::SaysUnknownAfter
        | Behaviour::TimesOutAfter
        | Behaviour::Fails500After
        | Behaviour::ResetAfter
        | Behaviour::BreaksOff
        | Behaviour::PanicsAfter
        | Behaviour::GivesUpOnProvider => {}
    }
    let called = call_provider(scenario, behaviour, call);
    if behaviour == Behaviour::GivesUpOnProvider {
        scenario.sleep_random(10, 500).await;
        return Err(Outcome::unknown("no_answer"));
    }
    let charge = called.await.map_err(|_| Outcome::unknown("no_answer"))?;
    if behaviour == Behaviour::Late {
        scenario.sleep_random(1000, 15_000).await;
    }
    scenario.inject_mishap(process);
    process.step().await;
    match charge {
        Charge::Happened(_) if behaviour == Behaviour::TimesOutAfter => {
            Err(Outcome::unknown("no_answer"))
        }
        Charge::Happened(entry) => Ok(entry.number),
        // Voided: this attempt provably had no effect.
        Charge::Voided => Err(Outcome::not_executed("called_off")),
    }
}
