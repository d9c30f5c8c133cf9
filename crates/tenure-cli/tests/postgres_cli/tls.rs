//! Encrypted connections to a PostgreSQL server with a certificate.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;
use tenure_testbed::{Durability, Postgres, shared};

use crate::bed::{Served, ok, run};
use crate::common::{stderr, stdout};

/// An authority, another one, and a certificate for 127.0.0.1 that the first has signed.
struct Certificates(TempDir);

impl Certificates {
    fn make() -> Self {
        let made = Self(TempDir::new().expect("a temporary directory"));
        for name in ["authority", "other"] {
            made.openssl(&format!(
                "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} \
                 -keyout {name}.key -out {name}.crt"
            ));
        }
        made.openssl("req -newkey rsa:2048 -nodes -subj /CN=db -keyout server.key -out server.csr");
        std::fs::write(made.file("names"), "subjectAltName=IP:127.0.0.1\n").expect("it is ours");
        made.openssl(
            "x509 -req -days 2 -in server.csr -CA authority.crt -CAkey authority.key \
             -CAcreateserial -extfile names -out server.crt",
        );
        // As people make them in one line: for itself, and by mistake for an authority.
        for (name, authority) in [("itself", "FALSE"), ("mistake", "TRUE")] {
            made.openssl(&format!(
                "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=db -keyout {name}.key \
                 -addext subjectAltName=IP:127.0.0.1 \
                 -addext basicConstraints=critical,CA:{authority} -out {name}.crt"
            ));
        }
        for key in ["server.key", "itself.key", "mistake.key"] {
            made.give(&made.file(key));
        }
        made
    }

    /// A database with one of the certificates.
    fn server(&self, name: &str) -> Postgres {
        let certificate = format!("ssl_cert_file={}", self.shown(&format!("{name}.crt")));
        let key = format!("ssl_key_file={}", self.shown(&format!("{name}.key")));
        let settings = ["ssl=on", &certificate, &key];
        Postgres::start_with(Durability::None, &settings).expect("PostgreSQL starts")
    }

    fn openssl(&self, args: &str) {
        ok(Command::new("openssl").args(args.split_whitespace()).current_dir(self.0.path()));
    }

    /// Lets the user of the database in, who must own the key.
    fn give(&self, key: &Path) {
        let anybody = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(self.0.path(), anybody).expect("it is ours");
        std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
        let home = Path::new("/var/lib/postgresql").metadata();
        if let (0, Ok(home)) = (self.0.path().metadata().expect("it is there").uid(), home) {
            chown(key, Some(home.uid()), Some(home.gid())).expect("it is ours");
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn shown(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}

#[test]
fn a_database_is_believed_as_much_as_sslmode_says() {
    let made = Certificates::make();
    let server = made.server("server");
    let store = server.url(&server.new_database().unwrap());
    let (right, other) = (made.shown("authority.crt"), made.shown("other.crt"));
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
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(69), "{said}");
        assert!(said.contains("is not signed by a known authority"), "{said}");
    }
    // The certificate is for the number, and not for this name of the same machine.
    let named = store.replace("127.0.0.1", "localhost");
    let output =
        run(&["migrate", "--store", &format!("{named}?sslmode=verify-full&sslrootcert={right}")]);
    assert!(stderr(&output).contains("the certificate of the database is for another host"));
    let output =
        run(&["migrate", "--store", &format!("{named}?sslmode=verify-ca&sslrootcert={right}")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let output = migrate("sslmode=verify-full&sslrootcert=/nowhere.crt");
    assert!(stderr(&output).contains("/nowhere.crt"), "{output:?}");

    // A whole server, and all its connections are encrypted.
    let served = Served::start(&format!("{store}?sslmode=verify-full&sslrootcert={right}"));
    assert_eq!(served.acquire("cluster/c1"), 1);
    let plain = "SELECT count(*) FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) \
                 WHERE a.application_name LIKE 'tenure%' AND NOT s.ssl";
    assert_eq!(server.psql("postgres", plain).unwrap(), "0");
    let all = plain.replace("NOT s.ssl", "s.ssl");
    assert_ne!(server.psql("postgres", &all).unwrap(), "0");
}

#[test]
fn a_certificate_that_signs_itself_is_its_own_authority() {
    let made = Certificates::make();
    let migrate = |name: &str| {
        let server = made.server(name);
        let root = made.shown(&format!("{name}.crt"));
        let query = format!("sslmode=verify-full&sslrootcert={root}");
        run(&["migrate", "--store", &format!("{}?{query}", server.url("postgres"))])
    };
    let output = migrate("itself");
    assert!(output.status.success(), "{}", stderr(&output));
    let output = migrate("mistake");
    assert!(stderr(&output).contains("basicConstraints=CA:FALSE"), "{output:?}");
}

#[test]
fn a_database_without_tls_is_used_only_where_it_was_not_required() {
    let store = shared().url(&shared().new_database().unwrap());
    let migrate = |mode: &str| run(&["migrate", "--store", &format!("{store}?sslmode={mode}")]);
    let output = migrate("prefer");
    assert!(stdout(&output).contains("tables brought"), "{output:?}");
    let output = migrate("require");
    assert_eq!(output.status.code(), Some(69), "{output:?}");
    assert!(stderr(&output).contains("or use sslmode=prefer"), "{output:?}");
}
