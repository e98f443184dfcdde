//! Signs outgoing events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderName, HeaderValue};
use semel_core::Timestamp;

use super::secret::{MAX_SECRETS, Secret};
use super::signature::{ID, SIGNATURE, TIMESTAMP};
use super::{Error, Scheme};

/// Signs events according to Standard Webhooks. `Debug` does not show the secrets.
#[derive(Clone, Debug)]
pub struct Signer(Vec<Secret>);

impl Signer {
    /// Signs with each of these secrets; use several while a secret is rotated.
    ///
    /// # Errors
    /// [`Error::Secret`] and [`Error::Secrets`]; the messages do not contain a secret.
    pub fn new<'s>(secrets: impl IntoIterator<Item = &'s str>) -> Result<Self, Error> {
        let secrets = secrets
            .into_iter()
            .map(|text| Secret::read(&Scheme::Standard, text))
            .collect::<Result<Vec<_>, _>>()?;
        if secrets.is_empty() || secrets.len() > MAX_SECRETS {
            return Err(Error::Secrets(secrets.len()));
        }
        Ok(Self(secrets))
    }

    /// The headers of an event that is sent at `now`.
    ///
    /// # Errors
    /// The id contains characters that are invalid in a header.
    pub fn sign(
        &self,
        id: &str,
        now: Timestamp,
        body: &[u8],
    ) -> Result<[(HeaderName, HeaderValue); 3], http::Error> {
        let seconds = now.as_micros().div_euclid(1_000_000).to_string();
        let signed: [&[u8]; 5] = [id.as_bytes(), b".", seconds.as_bytes(), b".", body];
        let signatures: Vec<String> = self
            .0
            .iter()
            .map(|secret| format!("v1,{}", STANDARD.encode(secret.tag(&signed))))
            .collect();
        Ok([
            (ID, HeaderValue::from_str(id)?),
            (TIMESTAMP, HeaderValue::from_str(&seconds)?),
            (SIGNATURE, HeaderValue::from_str(&signatures.join(" "))?),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example from the tests of Standard Webhooks' libraries.
    #[test]
    fn the_published_example_is_signed_as_published() {
        let signer = Signer::new(["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]).unwrap();
        let at = Timestamp::from_micros(1_614_265_330_000_000);
        let body = br#"{"test": 2432232314}"#;
        let lines = signer
            .sign("msg_p5jXN8AQM9LWM0D4loKWxJek", at, body)
            .unwrap();
        assert_eq!(lines[1].1, "1614265330");
        assert_eq!(
            lines[2].1,
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn every_secret_signs() {
        let secrets = [
            "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
            "whsec_c2VtZWwtc2VtZWwtc2VtZWw=",
        ];
        let lines = Signer::new(secrets)
            .unwrap()
            .sign("1", Timestamp::from_micros(0), b"")
            .unwrap();
        let signatures = lines[2].1.to_str().unwrap();
        assert_eq!(signatures.split(' ').count(), 2, "{signatures}");
    }

    #[test]
    fn a_signer_without_a_valid_secret_is_refused() {
        assert_eq!(Signer::new([]).unwrap_err(), Error::Secrets(0));
        assert!(Signer::new(["whsec_c2hvcnQ="]).is_err());
        let many = ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"; MAX_SECRETS + 1];
        assert_eq!(
            Signer::new(many).unwrap_err(),
            Error::Secrets(MAX_SECRETS + 1)
        );
    }
}
