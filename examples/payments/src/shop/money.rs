//! Calling the provider, in the words of phases: what it decided is something that was found, and
//! everything else is an [`Outcome`] that says whether it can have happened.

use semel::Outcome;

use super::Shop;
use super::books::{Payment, Refund};
use crate::client::Called;
use crate::provider::{self, Charge, ChargeRequest, RefundRequest};

impl Shop {
    /// Charges a payment. The same key is the same charge, however often it is asked for.
    pub(super) async fn charge(&self, payment: &Payment, key: String) -> Result<Charge, Outcome> {
        // Nothing of this may differ between two attempts: the provider would refuse the key.
        let request = ChargeRequest {
            amount: payment.amount,
            currency: payment.currency.clone(),
            reference: payment.merchant_reference.clone(),
            card: None,
            metadata: [("payment_id".to_owned(), payment.id.clone())].into(),
        };
        decided(self.provider.charge(&request, Some(&key), None).await)
    }

    /// Pays back, under the same rule.
    pub(super) async fn pay_back(
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

/// A decline is decided, too.
fn decided<T>(called: Called<T>) -> Result<T, Outcome> {
    match called {
        Called::Decided(found) => Ok(found),
        Called::NotSent(reason) => {
            tracing::warn!(reason, "the provider was not reached");
            Err(Outcome::not_executed("provider_unreachable"))
        }
        Called::Unclear(reason) => {
            tracing::warn!(reason, "nobody knows what the provider did");
            Err(Outcome::unknown("provider_unclear"))
        }
    }
}
