//! What callers feel while the rows of a large table expire.

use anyhow::Result;

use super::Extent;
use super::growth::fill;
use super::server::Server;
use crate::retention::{AGE, measure};
use crate::target::Target;

pub(super) fn run(server: &Server, extent: &Extent) -> Result<Target> {
    let [_, rows] = extent.rows;
    let size = fill(server, extent, rows, AGE)?;
    measure(&server.runtime, &size.store, extent.time, extent.rounds)
}
