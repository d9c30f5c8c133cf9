//! Encrypted connections, and whom to believe at the other end.

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

/// Makes connections encrypted, if the address asks for it.
pub(super) type Tls = MakeRustlsConnect;

/// Where systems keep the authorities that they know.
const KNOWN: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];

/// What makes connections that trust as told.
pub(super) fn connector(trust: &Trust, wanted: bool) -> Result<Tls> {
    let provider = Arc::new(ring::default_provider());
    let check = match trust {
        Trust::Signed { root, for_this_host } if wanted => {
            let roots = Arc::new(roots(root.as_deref())?);
            let builder = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
            let inner = builder.build().map_err(|error| wrong(&error))?;
            Check { inner: Some(inner), host: *for_this_host, provider: Arc::clone(&provider) }
        }
        _ => Check { inner: None, host: false, provider: Arc::clone(&provider) },
    };
    let builder = ClientConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().map_err(|error| wrong(&error))?;
    let check = Arc::new(check);
    let config = builder.dangerous().with_custom_certificate_verifier(check).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn roots(file: Option<&str>) -> Result<RootCertStore> {
    let known = || KNOWN.into_iter().find(|path| std::path::Path::new(path).exists());
    let file = file.filter(|file| *file != "system").or_else(known);
    let Some(file) = file else {
        return Err(wrong(&"no authorities are known here; name a file with sslrootcert=FILE"));
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file);
    for certificate in certificates.map_err(|error| wrong(&format!("{file}: {error}")))? {
        // A system has some that nobody can use.
        roots.add(certificate.map_err(|error| wrong(&format!("{file}: {error}")))?).ok();
    }
    if roots.is_empty() {
        return Err(wrong(&format!("{file} has no usable certificate")));
    }
    Ok(roots)
}

fn wrong(error: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("cannot set up TLS to the database: {error}"))
}

/// Looks at the certificate of the database as much as `sslmode` says.
#[derive(Debug)]
struct Check {
    /// Nothing: any will do.
    inner: Option<Arc<WebPkiServerVerifier>>,
    /// It must be for the host that was called.
    host: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Check {
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
            )) if !self.host => Ok(ServerCertVerified::assertion()),
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
