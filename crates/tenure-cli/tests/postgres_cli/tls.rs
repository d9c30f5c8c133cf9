//! Encrypted connections to a PostgreSQL server with a certificate.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tenure_testbed::{Durability, Postgres, shared};

use crate::common::{stderr, stdout};
use crate::testbed::{TestServer, ok, run};

/// Two CAs, and a certificate for 127.0.0.1 signed by the first.
struct Certificates(TempDir);

impl Certificates {
    fn create() -> Self {
        let certificates = Self(TempDir::new().expect("a temporary directory"));
        for name in ["authority", "other"] {
            certificates.openssl(&format!(
                "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} \
                 -keyout {name}.key -out {name}.crt"
            ));
        }
        certificates
            .openssl("req -newkey rsa:2048 -nodes -subj /CN=db -keyout server.key -out server.csr");
        std::fs::write(certificates.file("names"), "subjectAltName=IP:127.0.0.1\n")
            .expect("it is ours");
        certificates.openssl(
            "x509 -req -days 2 -in server.csr -CA authority.crt -CAkey authority.key \
             -CAcreateserial -extfile names -out server.crt",
        );
        // Self-signed: as an end-entity certificate, and by mistake as a CA.
        for (name, authority) in [("itself", "FALSE"), ("mistake", "TRUE")] {
            certificates.openssl(&format!(
                "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=db -keyout {name}.key \
                 -addext subjectAltName=IP:127.0.0.1 \
                 -addext basicConstraints=critical,CA:{authority} -out {name}.crt"
            ));
        }
        for key in ["server.key", "itself.key", "mistake.key"] {
            certificates.give_to_postgres(&certificates.file(key));
        }
        certificates
    }

    /// Starts a database with one of the certificates.
    fn server(&self, name: &str) -> Postgres {
        let certificate = format!("ssl_cert_file={}", self.path_text(&format!("{name}.crt")));
        let key = format!("ssl_key_file={}", self.path_text(&format!("{name}.key")));
        let settings = ["ssl=on", &certificate, &key];
        Postgres::start_with(Durability::None, &settings).expect("PostgreSQL starts")
    }

    fn openssl(&self, args: &str) {
        ok(Command::new("openssl").args(args.split_whitespace()).current_dir(self.0.path()));
    }

    /// Makes the user of the database the owner of the key, as PostgreSQL requires.
    fn give_to_postgres(&self, key: &Path) {
        let searchable = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.0.path(), searchable).expect("it is ours");
        std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        let home = Path::new("/var/lib/postgresql").metadata();
        if let (0, Ok(home)) = (self.0.path().metadata().expect("it is there").uid(), home) {
            chown(key, Some(home.uid()), Some(home.gid())).expect("it is ours");
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn path_text(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}

#[test]
fn certificates_are_verified_according_to_sslmode() {
    let certificates = Certificates::create();
    let server = certificates.server("server");
    let store = server.url(&server.new_database().unwrap());
    let (right, other) =
        (certificates.path_text("authority.crt"), certificates.path_text("other.crt"));
    let migrate = |query: &str| run(&["migrate", "--store", &format!("{store}?{query}")]);

    let good = [
        "sslmode=require".to_owned(),
        "sslmode=prefer".to_owned(),
        "sslmode=disable".to_owned(),
        format!("sslmode=verify-ca&sslrootcert={right}"),
        format!("sslmode=verify-full&sslrootcert={right}"),
    ];
    for query in &good {
        let output = migrate(query);
        assert!(output.status.success(), "{query}: {}", stderr(&output));
    }
    for mode in ["verify-ca", "verify-full"] {
        let output = migrate(&format!("sslmode={mode}&sslrootcert={other}"));
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(69), "{error}");
        assert!(error.contains("is not signed by a known authority"), "{error}");
    }
    // The certificate is for the IP address, not for this name of the same host.
    let named = store.replace("127.0.0.1", "localhost");
    let output =
        run(&["migrate", "--store", &format!("{named}?sslmode=verify-full&sslrootcert={right}")]);
    assert!(stderr(&output).contains("the certificate of the database is for another host"));
    let output =
        run(&["migrate", "--store", &format!("{named}?sslmode=verify-ca&sslrootcert={right}")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = migrate("sslmode=verify-full&sslrootcert=/nowhere.crt");
    assert!(stderr(&output).contains("/nowhere.crt"), "{output:?}");

    // All connections of a server are encrypted.
    let server_process =
        TestServer::start(&format!("{store}?sslmode=verify-full&sslrootcert={right}"));
    assert_eq!(server_process.acquire("cluster/c1"), 1);
    let plain = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                 WHERE a.application_name LIKE 'tenure%' AND NOT s.ssl";
    assert_eq!(server.psql("postgres", plain).unwrap(), "0");
    let all = plain.replace("NOT s.ssl", "s.ssl");
    assert_ne!(server.psql("postgres", &all).unwrap(), "0");
}

#[test]
fn a_self_signed_certificate_must_not_be_a_ca() {
    let certificates = Certificates::create();
    let migrate = |name: &str| {
        let server = certificates.server(name);
        let root = certificates.path_text(&format!("{name}.crt"));
        let query = format!("sslmode=verify-full&sslrootcert={root}");
        run(&["migrate", "--store", &format!("{}?{query}", server.url("postgres"))])
    };
    let output = migrate("itself");
    assert!(output.status.success(), "{}", stderr(&output));
    let output = migrate("mistake");
    assert!(stderr(&output).contains("basicConstraints=CA:FALSE"), "{output:?}");
}

#[test]
fn a_database_without_tls_is_rejected_if_tls_is_required() {
    let store = shared().url(&shared().new_database().unwrap());
    let migrate = |mode: &str| run(&["migrate", "--store", &format!("{store}?sslmode={mode}")]);
    let output = migrate("prefer");
    assert!(stdout(&output).contains("migrated from"), "{output:?}");
    let output = migrate("require");
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(stderr(&output).contains("or use sslmode=prefer"), "{output:?}");
}
