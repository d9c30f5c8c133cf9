//! Describes requests without a response: what failed, and the remedy.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use rustls::CertificateError;

use super::{CONNECT_TIMEOUT, Error};

/// Describes an HTTP failure without credentials in the URL and without the API key. `timeout` is
/// that of the request.
pub(super) fn unavailable(base: &str, error: &reqwest::Error, timeout: Duration) -> Error {
    Error::Unavailable(format!("{base}: {}", describe(base, error, timeout)))
}

fn describe(base: &str, error: &reqwest::Error, timeout: Duration) -> String {
    if let Some(problem) = causes(error).find_map(describe_tls) {
        return problem;
    }
    let is = |kind| causes(error).any(|cause| io_kind(cause) == Some(kind));
    let says = |words: &str| causes(error).any(|cause| cause.to_string().contains(words));
    if says("dns error") {
        return "cannot connect: the host name cannot be resolved; check it in --server or \
                TENURE_SERVER"
            .to_owned();
    }
    if error.is_connect() && error.is_timeout() {
        let seconds = CONNECT_TIMEOUT.as_secs();
        return format!(
            "cannot connect: no answer within {seconds} s; check the address, and whether a \
             firewall drops the packets"
        );
    }
    if error.is_timeout() {
        let seconds = timeout.as_secs();
        return format!(
            "the request timed out: connected, but no answer within {seconds} s; check the log \
             and the load of the server"
        );
    }
    if is(io::ErrorKind::ConnectionRefused) {
        let command = serve_command(base);
        return format!(
            "cannot connect: nothing listens on this address; start a server with `{command}` or \
             name it with --server"
        );
    }
    if error.is_connect() {
        let cause = causes(error).last().map(ToString::to_string).unwrap_or_default();
        return format!("cannot connect: {cause}; name another server with --server");
    }
    // A TLS server closes the connection or answers with a TLS alert.
    if base.starts_with("http://") && (says("invalid HTTP") || says("invalid message version")) {
        return "the answer is not HTTP; if the server has a certificate, use https:// in its \
                address"
            .to_owned();
    }
    "the connection was closed; if this happens again, check the log of the server and whether its \
     address needs https://"
        .to_owned()
}

/// Returns the command that starts a server at an address of this machine.
fn serve_command(base: &str) -> String {
    let address = base.strip_prefix("http://").unwrap_or_default();
    let is_local = ["127.0.0.1:", "localhost:", "[::1]:"].iter().any(|at| address.starts_with(at));
    match is_local && !address.ends_with(":7117") {
        true => format!("tenure serve --listen {address}"),
        false => "tenure serve".to_owned(),
    }
}

/// Describes a failure of TLS.
fn describe_tls(cause: &(dyn StdError + 'static)) -> Option<String> {
    let error = cause.downcast_ref::<rustls::Error>()?;
    let problem = match error {
        rustls::Error::InvalidCertificate(problem) => problem,
        rustls::Error::InvalidMessage(_) => {
            return Some(
                "the server does not speak TLS on this port; use http:// in its address, or set \
                 tls_certificate and tls_key in [server] of its tenure.toml"
                    .to_owned(),
            );
        }
        other => return Some(format!("TLS failed: {other}")),
    };
    let trust = "set TENURE_CA to the PEM file of the CA that issued it";
    Some(match problem {
        CertificateError::UnknownIssuer => {
            format!("the certificate of the server was issued by an unknown CA; {trust}")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "the certificate of the server has expired; renew it, and restart the server".to_owned()
        }
        // The verifier has no variant for it.
        CertificateError::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "the server uses the certificate of a CA as its own; issue a server certificate with \
             that CA (basicConstraints CA:FALSE), set it as tls_certificate in [server] of its \
             tenure.toml, and set TENURE_CA to the CA"
                .to_owned()
        }
        CertificateError::NotValidForNameContext { expected, presented } => {
            let names: Vec<_> = presented.iter().map(|name| plain_name(name)).collect();
            let (expected, names) = (expected.to_str(), names.join(", "));
            format!(
                "the certificate of the server is for {names}, not for {expected}; use a name of \
                 the certificate in --server, or issue one for {expected}"
            )
        }
        other => {
            format!(
                "the certificate of the server is invalid: {other}; use a host name of the \
                 certificate, and {trust}"
            )
        }
    })
}

/// Returns the name in `DnsName("db1")`, the form in which the verifier names a certificate.
fn plain_name(name: &str) -> &str {
    let inner = name.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')'));
    inner.unwrap_or(name).trim_matches('"')
}

/// Returns the causes of an error, outermost first. An [`io::Error`] hides the error it wraps.
fn causes(error: &reqwest::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| {
        let wrapped = cause.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        wrapped.map(|wrapped| wrapped as &(dyn StdError + 'static)).or_else(|| cause.source())
    })
}

fn io_kind(cause: &(dyn StdError + 'static)) -> Option<io::ErrorKind> {
    cause.downcast_ref().map(io::Error::kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::tls::plain_http_config;

    #[test]
    fn the_command_starts_a_server_at_the_address() {
        for (base, command) in [
            ("http://127.0.0.1:7117", "tenure serve"),
            ("http://127.0.0.1:7300", "tenure serve --listen 127.0.0.1:7300"),
            ("http://[::1]:7300", "tenure serve --listen [::1]:7300"),
            ("http://db1:7300", "tenure serve"),
            ("https://127.0.0.1:7300", "tenure serve"),
        ] {
            assert_eq!(serve_command(base), command);
        }
    }

    #[tokio::test]
    async fn a_server_that_does_not_answer_is_not_taken_for_an_unreachable_one() {
        // Never accepted: the kernel completes the connection.
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(plain_http_config().unwrap())
            .build()
            .unwrap();
        let request = http.get(&url).timeout(Duration::from_millis(200));
        let error = request.send().await.unwrap_err();
        let text = unavailable(&url, &error, Duration::from_secs(10)).to_string();
        assert!(text.contains("connected, but no answer within 10 s"), "{text}");
    }
}
