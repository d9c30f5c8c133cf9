//! TLS configuration of clients.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// Environment variable that names a PEM file of CA certificates to trust instead of the system's.
const CA_VARIABLE: &str = "TENURE_CA";
/// Locations of the system's CA certificates.
const SYSTEM_CA_FILES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Returns the TLS configuration with the CA certificates of `TENURE_CA` or of the system.
pub fn client_config() -> Result<ClientConfig, Error> {
    let named = std::env::var(CA_VARIABLE).ok().filter(|path| !path.is_empty());
    let path = match &named {
        Some(path) => path.as_str(),
        None => SYSTEM_CA_FILES
            .into_iter()
            .find(|path| std::path::Path::new(path).exists())
            .ok_or_else(|| {
                let message =
                    format!("no system CA certificates found; set {CA_VARIABLE} to a PEM file");
                Error::Unavailable(message)
            })?,
    };
    let unreadable = |error| {
        Error::Unavailable(format!(
            "cannot read CA certificates from {path} ({CA_VARIABLE}): {error}"
        ))
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate.map_err(unreadable)?);
        // A system bundle may contain certificates that rustls rejects; a file named by the user
        // must be valid.
        if let Err(error) = added
            && named.is_some()
        {
            return Err(Error::Unavailable(format!("invalid CA certificate in {path}: {error}")));
        }
    }
    if roots.is_empty() {
        return Err(Error::Unavailable(format!(
            "there is no certificate in {path}; set {CA_VARIABLE} to a PEM file of CA certificates"
        )));
    }
    config_with_roots(roots)
}

/// Returns a TLS configuration without CA certificates, for clients that only use plain HTTP.
pub fn plain_http_config() -> Result<ClientConfig, Error> {
    config_with_roots(RootCertStore::empty())
}

fn config_with_roots(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Unavailable(format!("cannot configure TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
