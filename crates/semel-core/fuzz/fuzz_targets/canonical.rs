//! Bodies, as JSON and as everything else.
#![no_main]

#[path = "../properties/canonical.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::check(input));
