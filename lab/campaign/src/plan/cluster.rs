//! The phases of a campaign against a cluster.

use semel_testkit::cluster::Partition;

use super::{Action, Drawing, HOUR, Sketch};
use crate::cluster::ClusterFault;
use crate::random::Random;

/// The phases of a cluster. Each fault has as many seconds as its repair may need on a busy machine.
pub(super) const SKETCHES: [Sketch; 8] = [
    ("warm_up", 20, 5, |_| {}),
    ("cluster_switchovers", 300, 30, |drawing| {
        drawing.in_turn(30, |_, _| ClusterFault::SwitchOver);
    }),
    ("cluster_kills", 700, 70, |drawing| {
        drawing.in_turn(70, |_, _| ClusterFault::Kill);
    }),
    ("cluster_freezes", 800, 80, |drawing| {
        drawing.in_turn(80, |random, _| {
            ClusterFault::Freeze(random.between(25_000, 40_000))
        });
    }),
    ("cluster_partitions", 800, 80, |drawing| {
        drawing.in_turn(80, |random, turn| {
            let partition = Partition::ALL[turn % Partition::ALL.len()];
            ClusterFault::CutOff(partition, random.between(28_000, 40_000))
        });
    }),
    ("cluster_standby_lost", 200, 50, |drawing| {
        drawing.in_turn(50, |random, turn| {
            let ms = random.between(2_000, 15_000);
            if turn % 2 == 0 {
                ClusterFault::LoseStandby(ms)
            } else {
                ClusterFault::LoseStandbys(ms)
            }
        });
    }),
    ("cluster_disk_full", 270, 90, |drawing| {
        drawing.in_turn(90, |random, _| {
            ClusterFault::FillDisk(random.between(10_000, 25_000))
        });
    }),
    ("cluster_clocks", 480, 120, |drawing| {
        const OFFSETS: [i64; 4] = [HOUR, -HOUR, 3, -3];
        drawing.in_turn(120, |_, turn| {
            ClusterFault::MoveClock(OFFSETS[turn % OFFSETS.len()])
        });
    }),
];
/// How long clients work before the first fault of a phase.
const WORK_FIRST_MS: u64 = 3_000;
/// The phases of the short run: the others take minutes each.
pub(super) const SHORT: [&str; 3] = ["warm_up", "cluster_switchovers", "cluster_kills"];

impl Drawing<'_> {
    /// Schedules a fault of the cluster every so many seconds, as often as it fits. Clients work for a
    /// moment before the first one.
    fn in_turn(
        &mut self,
        seconds: usize,
        mut what: impl FnMut(&mut Random, usize) -> ClusterFault,
    ) {
        for (turn, at) in (WORK_FIRST_MS..self.ms)
            .step_by(1_000 * seconds)
            .enumerate()
        {
            let fault = what(self.random, turn);
            self.actions.push((at, Action::Cluster(fault)));
        }
    }
}
