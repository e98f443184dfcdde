//! The provider calls of phases. The provider's decision is the result of the phase; everything else
//! is an [`Outcome`] that states whether the call may have been executed.

use semel::Outcome;

use super::Shop;
use super::books::{Payment, Refund};
use crate::client::CallOutcome;
use crate::provider::{self, Charge, ChargeRequest, RefundRequest};

impl Shop {
    /// Charges a payment. The provider makes one charge for a key, however often it is requested.
    pub(super) async fn charge(&self, payment: &Payment, key: String) -> Result<Charge, Outcome> {
        // The same on every attempt: the provider refuses a key with another body.
        let request = ChargeRequest {
            amount: payment.amount,
            currency: payment.currency.clone(),
            reference: payment.merchant_reference.clone(),
            card: None,
            metadata: [("payment_id".to_owned(), payment.id.clone())].into(),
        };
        decided(self.provider.charge(&request, Some(&key), None).await)
    }

    /// Refunds a payment, under the same rule.
    pub(super) async fn refund(
        &self,
        refund: &Refund,
        key: String,
    ) -> Result<provider::Refund, Outcome> {
        let request = RefundRequest {
            charge_id: refund.charge_id.clone(),
            amount: refund.amount,
        };
        decided(self.provider.refund(&request, &key).await)
    }
}

/// A decline is a decision, too.
fn decided<T>(called: CallOutcome<T>) -> Result<T, Outcome> {
    match called {
        CallOutcome::Decided(found) => Ok(found),
        CallOutcome::NotSent(reason) => {
            tracing::warn!(reason, "the provider was not reached");
            Err(Outcome::not_executed("provider_unreachable"))
        }
        CallOutcome::Unknown(reason) => {
            tracing::warn!(reason, "the outcome of the call to the provider is unknown");
            Err(Outcome::unknown("provider_unclear"))
        }
    }
}
