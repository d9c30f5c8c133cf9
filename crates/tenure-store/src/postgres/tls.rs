//! TLS and verification of the server certificate.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::settings::Trust;
use crate::store::{Result, StoreError};

/// Encrypts connections, if the URL requires it.
pub(super) type Tls = MakeRustlsConnect;

/// Common locations of the system's CA bundle.
const SYSTEM_CA_BUNDLES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// Returns a connector that verifies server certificates according to `trust`. If TLS is disabled,
/// no CA bundle is loaded.
pub(super) fn connector(trust: &Trust, tls_enabled: bool) -> Result<Tls> {
    let provider = Arc::new(ring::default_provider());
    let (inner, verify_host) = match trust {
        Trust::Signed { root, verify_host } if tls_enabled => {
            let roots = Arc::new(load_roots(root.as_deref())?);
            let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
            (Some(builder.build().map_err(|error| tls_error(&error))?), *verify_host)
        }
        _ => (None, false),
    };
    let verifier = CertificateVerifier { inner, verify_host, provider: Arc::clone(&provider) };
    let builder = ClientConfig::builder_with_provider(provider);
    let builder =
        builder.with_safe_default_protocol_versions().map_err(|error| tls_error(&error))?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Ok(MakeRustlsConnect::new(builder.with_no_client_auth()))
}

fn load_roots(file: Option<&str>) -> Result<RootCertStore> {
    let exists = |path: &&str| std::path::Path::new(path).exists();
    let system = || SYSTEM_CA_BUNDLES.into_iter().find(exists);
    let file = file.filter(|file| *file != "system").or_else(system);
    let Some(file) = file else {
        return Err(tls_error(&"no system CA bundle found; name a file with sslrootcert=FILE"));
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file);
    for certificate in certificates.map_err(|error| tls_error(&format!("{file}: {error}")))? {
        // System bundles contain certificates that webpki rejects.
        roots.add(certificate.map_err(|error| tls_error(&format!("{file}: {error}")))?).ok();
    }
    if roots.is_empty() {
        return Err(tls_error(&format!("{file} has no usable certificate")));
    }
    Ok(roots)
}

fn tls_error(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::unavailable(format!("cannot set up TLS to the database: {error}"))
}

/// Verifies the server certificate as strictly as `sslmode` requires.
#[derive(Debug)]
struct CertificateVerifier {
    /// `None` accepts any certificate.
    inner: Option<Arc<WebPkiServerVerifier>>,
    /// Whether the certificate must be valid for the host name.
    verify_host: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for CertificateVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.verify_host => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
