//! A private CA with certificates for the server and for a client, made by `openssl`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::process::Scratch;

/// What the server presents, and what a kubeconfig contains: PEM in base64.
#[derive(Clone)]
pub(super) struct Certificates {
    pub(super) server: Arc<ServerConfig>,
    pub(super) authority: String,
    pub(super) client_certificate: String,
    pub(super) client_key: String,
}

/// Returns the certificates that all servers of this process share.
pub(super) fn shared() -> Result<Certificates> {
    static SHARED: OnceLock<Certificates> = OnceLock::new();
    if let Some(made) = SHARED.get() {
        return Ok(made.clone());
    }
    let made = make()?;
    Ok(SHARED.get_or_init(|| made).clone())
}

fn make() -> Result<Certificates> {
    let scratch = Scratch::create_private("tenure-kube")?;
    let dir = scratch.path();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(dir, &format!("req -x509 {key} -days 2 -subj /CN=ca -keyout ca.key -out ca.crt"))?;
    for (name, subject, usage) in [
        ("server", "/CN=kube-apiserver", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        ("client", "/CN=admin/O=system:masters", "extendedKeyUsage=clientAuth"),
    ] {
        let request = format!("req {key} -subj {subject} -keyout {name}.key -out {name}.csr");
        openssl(dir, &request)?;
        fs::write(dir.join("extensions"), usage).context("write the extensions")?;
        openssl(
            dir,
            &format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                 -extfile extensions -out {name}.crt"
            ),
        )?;
    }
    let base64 = |file: &str| openssl(dir, &format!("base64 -A -in {file}"));
    Ok(Certificates {
        server: server_config(dir)?,
        authority: base64("ca.crt")?,
        client_certificate: base64("client.crt")?,
        client_key: base64("client.key")?,
    })
}

/// Accepts clients with a certificate of the CA, and those without any.
fn server_config(dir: &Path) -> Result<Arc<ServerConfig>> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(dir.join("ca.crt"))?)?;
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .allow_unauthenticated()
            .build()?;
    let chain = vec![CertificateDer::from_pem_file(dir.join("server.crt"))?];
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(dir.join("server.key"))?)?;
    Ok(Arc::new(config))
}

fn openssl(dir: &Path, args: &str) -> Result<String> {
    let mut command = Command::new("openssl");
    let output = command.args(args.split_whitespace()).current_dir(dir).output();
    let output = output.context("`openssl` is missing; on Debian: apt-get install openssl")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "openssl {args}: {errors}");
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
