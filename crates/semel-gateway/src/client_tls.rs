//! TLS settings for outgoing connections: which root certificates are trusted.

use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::{ClientConfig, RootCertStore};

/// Uses the operating system's root certificates.
pub(crate) fn with_native_roots() -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    let (added, _) =
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if added == 0 {
        return Err(
            "the operating system has no root certificates; install the package `ca-certificates`"
                .into(),
        );
    }
    with_roots(roots).map_err(|error| error.to_string())
}

/// Trusts `roots` only.
pub(crate) fn with_roots(roots: RootCertStore) -> Result<ClientConfig, rustls::Error> {
    // Explicit: the process may have installed no default provider, or a different one.
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
