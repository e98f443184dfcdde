//! What callers feel while the rows of a large table expire.

use anyhow::Result;

use super::Extent;
use super::growth::fill;
use super::server::Server;
use crate::report::Report;
use crate::retention::{AGE, measure_beside};

pub(super) fn run(report: &mut Report, server: &Server, extent: &Extent) -> Result<()> {
    let [_, rows] = extent.rows;
    let size = fill(server, extent, rows, AGE)?;
    let (time, rounds) = (extent.time, extent.rounds);
    measure_beside(
        report,
        "PostgreSQL",
        &server.runtime,
        &size.store,
        time,
        rounds,
    )
}
