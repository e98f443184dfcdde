//! Whose certificates are believed, by whoever connects out.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};

/// Believes those whom this machine believes.
pub(crate) fn client() -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err("this machine believes no certificate; install its root certificates".into());
    }
    believing(roots).map_err(|error| error.to_string())
}

/// Believes these.
pub(crate) fn believing(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    // Named, not taken from the process: that may have none, or another.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
