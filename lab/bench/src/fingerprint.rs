//! What a fingerprint costs, beside the crates that a service would otherwise take.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use semel_core::canonical;
use semel_core::fingerprint::{Request, Rules};
use sha2::{Digest as _, Sha256};

const BODIES_PER_ROUND: u32 = 2_000;

/// A payment of 0.9 KB, as clients send it.
pub(crate) const PAYMENT: &str = r#"{
  "amount": 12950, "currency": "EUR", "capture": true, "description": "Order 2041 at Example Books",
  "customer": {"id": "cus_8f2b1c94", "email": "ada@example.com", "name": "Ada Lovelace", "locale": "en-GB", "phone": "+44 20 7946 0018", "created": 1700000000},
  "billing_address": {"line1": "12 St James's Square", "line2": null, "city": "London", "postal_code": "SW1Y 4LB", "country": "GB"},
  "items": [
    {"sku": "BK-1002", "title": "Notes on the Analytical Engine", "quantity": 1, "unit_price": 89.50, "tax_rate": 0.2},
    {"sku": "BK-0077", "title": "Taschenrechner f\u00fcr Anf\u00e4nger", "quantity": 2, "unit_price": 20.00, "tax_rate": 0.2}
  ],
  "payment_method": {"type": "card", "card": {"token": "tok_1Nv0FgLkdIwHu7ix", "exp_month": 8, "exp_year": 2031}},
  "metadata": {"order_id": "2041", "channel": "web", "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736", "basket": 77.0}
}"#;

/// Prints nanoseconds per body, best of all rounds.
pub(crate) fn run(rounds: usize) -> Result<()> {
    let body = PAYMENT.as_bytes();
    ensure!(
        canonical::guarded(body)? == oracle(body)?,
        "the oracle disagrees"
    );

    let rules = Rules::default();
    let whole = best(rounds, || {
        let request = Request::new("create_payment", "POST", "/payments");
        let request = request.content_type("application/json").body(body);
        Ok(black_box(request.fingerprint(&rules)).version().into())
    })?;
    let ours = best(rounds, || {
        Ok(Sha256::digest(canonical::guarded(body)?)[0].into())
    })?;
    let writing = best(rounds, || Ok(canonical::guarded(body)?.len()))?;
    let theirs = best(rounds, || Ok(Sha256::digest(oracle(body)?)[0].into()))?;

    println!(
        "fingerprint of a {} byte JSON body, best of {rounds} rounds",
        body.len()
    );
    println!("  whole request, semel-core                      {whole:>8.0} ns");
    println!("  parse + canonicalise + SHA-256, semel-core     {ours:>8.0} ns");
    println!("    of which parse + canonicalise                {writing:>8.0} ns");
    println!("  serde_json + serde_json_canonicalizer + sha2   {theirs:>8.0} ns");
    println!(
        "  ratio                                          {:>8.1}",
        theirs / ours
    );
    Ok(())
}

fn oracle(body: &[u8]) -> Result<Vec<u8>> {
    let value: serde_json::Value = serde_json::from_slice(body)?;
    Ok(serde_json_canonicalizer::to_vec(&value)?)
}

/// Nanoseconds of one call, in the best round: the others were disturbed.
fn best(rounds: usize, mut work: impl FnMut() -> Result<usize>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        for _ in 0..BODIES_PER_ROUND {
            black_box(work()?);
        }
        let nanoseconds = start.elapsed().as_secs_f64() * 1e9;
        best = best.min(nanoseconds / f64::from(BODIES_PER_ROUND));
    }
    Ok(best)
}
