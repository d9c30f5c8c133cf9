//! Whom a client believes that it is the server.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use crate::error::Error;

/// Names a file with certificates that are trusted in place of those of the system.
const CA_VARIABLE: &str = "TENURE_CA";
/// Where systems keep the certificates that they trust.
const SYSTEM: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// TLS as clients do it.
pub fn config() -> Result<ClientConfig, Error> {
    let named = std::env::var(CA_VARIABLE).ok().filter(|path| !path.is_empty());
    let path = match &named {
        Some(path) => path.as_str(),
        None => SYSTEM.into_iter().find(|path| std::path::Path::new(path).exists()).ok_or_else(
            || {
                let why = format!(
                    "this system has no certificates to trust; name a file by {CA_VARIABLE}"
                );
                Error::Unavailable(why)
            },
        )?,
    };
    let unreadable = |error| {
        Error::Unavailable(format!("cannot read certificates from {path} ({CA_VARIABLE}): {error}"))
    };
    let certificates = CertificateDer::pem_file_iter(path).map_err(unreadable)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        let added = roots.add(certificate.map_err(unreadable)?);
        // A system may have some that we do not understand; one that was named must be good.
        if let Err(error) = added
            && named.is_some()
        {
            return Err(Error::Unavailable(format!("{path} has a bad certificate: {error}")));
        }
    }
    trusting(roots)
}

/// For clients that never use TLS.
pub fn nobody() -> Result<ClientConfig, Error> {
    trusting(RootCertStore::empty())
}

fn trusting(roots: RootCertStore) -> Result<ClientConfig, Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Unavailable(format!("no TLS: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
