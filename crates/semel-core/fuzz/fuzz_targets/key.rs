//! Header lines of an idempotency key.
#![no_main]

#[path = "../properties/key.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|input: &[u8]| properties::check(input));
