//! Operations of phases that stop anywhere, and how they are resumed.

mod calls;
mod crashes;
mod fixture;
mod late_writes;
mod versions;
