//! The phases of a campaign against a DynamoDB table.

use super::server::{any_target, link, upstream};
use super::{Action, GATEWAYS, LEASE_MS, Sketch};
use crate::dynamodb::DynamoFault;

pub(super) const SKETCHES: [Sketch; 10] = [
    ("warm_up", 20, 3, |_| {}),
    ("steady", 90, 5, |_| {}),
    ("dynamodb_kills", 120, 14, |drawing| {
        drawing.every(500, 0, |random| Action::Kill(any_target(random)));
    }),
    ("dynamodb_crashes", 90, 12, |drawing| {
        drawing.every(4_000, 3_000, |random| {
            Action::Dynamodb(DynamoFault::Crash(random.between(0, 1_500)))
        });
    }),
    ("dynamodb_lost_answers", 150, 12, |drawing| {
        // One is settled within the call, three are not: the caller writes again.
        drawing.every(60, 500, |random| {
            let lost = *random.pick(&[1, 1, 2, 3]);
            Action::Dynamodb(DynamoFault::LoseAnswers(random.index(GATEWAYS + 1), lost))
        });
        drawing.traffic.provider = 20;
    }),
    ("dynamodb_delayed_writes", 90, 8, |drawing| {
        drawing.every(150, 1_500, |random| {
            let delayed = random.between(1, 3);
            Action::Dynamodb(DynamoFault::DelayWrites(
                random.index(GATEWAYS + 1),
                delayed,
            ))
        });
    }),
    ("dynamodb_throttling", 60, 8, |drawing| {
        drawing.every(700, LEASE_MS, |random| {
            Action::Dynamodb(DynamoFault::Throttle(link(random), random.between(1, 60)))
        });
    }),
    // By a minute and more, and within what no answer shows.
    ("clocks", 40, 6, |drawing| {
        drawing.every(1_500, 2_000, |random| {
            Action::MoveClock(*random.pick(&[60, -60, 3_600, -3_600, 2, -2, 0]))
        });
    }),
    ("clients", 35, 5, |drawing| drawing.traffic.badly = 2),
    ("upstream", 40, 6, upstream),
];
