//! A table of what must not be left in a log, and of what must.

use super::*;

/// Texts in which the marked part must go. `«` and `»` enclose it.
const SECRETS: [&str; 47] = [
    "password=«hunter2»",
    "PASSWORD: «hunter2»",
    "password = «hunter2», user=ann",
    "db.password=«p,w;d»",
    "user=ann&password=«hunter2»&x=1",
    "{\"password\":\"«hunter2»\",\"user\":\"ann\"}",
    "{\"password\":\"«with \\\"quotes\\\" inside»\"}",
    "{\\\"password\\\":\\\"«hunter2»\\\"}",
    "{'password': '«correct horse»'}",
    "password=\"«correct horse»\" user=ann",
    "password=\"«never closed",
    "passwd := «hunter2»",
    "MYSQL_PWD=«hunter2»",
    "DB_PASS=«hunter2»",
    "token: «abc»",
    "accessToken => «abc»",
    "{\"token\":«12345»}",
    "refresh_token=«abc»",
    "X-Vault-Token: «abc»",
    "client_secret=«abc»",
    "AWS_SECRET_ACCESS_KEY=«wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY»",
    "api_key=«abc»",
    "apikey:«abc»",
    "AccountKey=«Zm9v+/==;EndpointSuffix=x»",
    "mysql --password «hunter2» -u ann",
    "tool --api-key=«abc» --verbose",
    "tool --auth-token «'a b c'»",
    "Authorization: «Basic dXNlcjpwYXNz»",
    "> authorization: «Bearer abc»",
    "curl -H 'Authorization: «Bearer abc def»' http://host/",
    "{\"Authorization\": \"«Digest username=ann, response=1»\"}",
    "Proxy-Authorization: «Basic dXNlcg==»",
    "Cookie: «session=1; id=2»",
    "x-api-key: «abc»",
    "key «AKIAIOSFODNN7EXAMPLE» was used",
    "key «ASIAIOSFODNN7EXAMPLE» was used",
    "postgres://«user:hunter2»@host:5432/db",
    "https://«ghp_1234567890abcdef»@github.com/x",
    "redis://«:p@ss:w»@host/0",
    "sent bearer «0123456789abcdef0123»",
    "jwt «eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl» ok",
    "«ghp_1234567890abcdefghij» is a token",
    "«github_pat_1234567890abcdefghij»",
    "slack «xoxb-1234567890-abc»",
    "«glpat-1234567890abcdefghij»",
    "google «AIzaSyA-1234567890abcdefghijklmnopqrstu»",
    "TENURE_ARGS=«{\"plain\":1}»",
];

/// Texts that say nothing secret and must come through as they are.
const PLAIN: [&str; 14] = [
    "copied 40 of 100 rows",
    "the token 17 is stale",
    "the password was changed",
    "used 512 tokens: 400 in, 112 out",
    "total_tokens: 512",
    "tokenizer: fast",
    "PWD=/srv/app",
    "http://host:8080/path?x=1",
    "mail to ann@example.com",
    "git clone ssh://host/repo",
    "author: ann",
    "primary_key: id",
    "AKIA is a prefix",
    "a bearer of news",
];

fn none() -> Redactor {
    Redactor { args: None, secrets: Vec::new() }
}

#[test]
fn what_looks_secret_goes_and_the_rest_stays() {
    for marked in SECRETS {
        let (before, rest) = marked.split_once('«').expect("a mark");
        let (secret, after) = rest.split_once('»').unwrap_or((rest, ""));
        let text = format!("{before}{secret}{after}");
        let clean = none().text(&text);
        assert!(!clean.contains(secret), "{text}\n{clean}");
        assert!(clean.contains(REDACTED), "{text}\n{clean}");
        // Whatever surrounds it is still there, so that people can read the log.
        assert!(clean.starts_with(before.trim_end()), "{text}\n{clean}");
        assert!(clean.ends_with(after.trim_start()), "{text}\n{clean}");
    }
}

#[test]
fn what_is_not_secret_comes_through() {
    for text in PLAIN {
        assert_eq!(none().text(text), text);
    }
}

#[test]
fn cleaning_twice_changes_nothing_more() {
    for marked in SECRETS {
        let text = marked.replace(['«', '»'], "");
        let once = none().text(&text);
        assert_eq!(none().text(&once), once, "{text}");
    }
}

#[test]
fn secret_arguments_go_wherever_they_stand() {
    let args = r#"{"name":"orders","db":{"password":"hunter2","pin":{"secret":[12345,"a\"b\"c"]}},
        "pass":"letmein","private_key":"line one of it\nline two of it","use_token":true}"#;
    let redactor = Redactor::new(Some(args));
    for (text, clean) in [
        ("connected with hunter2 to orders", "connected with [redacted] to orders"),
        ("hunter2hunter2", "[redacted][redacted]"),
        ("the pin is 12345", "the pin is [redacted]"),
        (r#"a"b"c"#, "[redacted]"),
        (r#"as json a\"b\"c"#, "as json [redacted]"),
        ("letmein!", "[redacted]!"),
        ("> line two of it <", "> [redacted] <"),
        ("true, it is", "true, it is"),
    ] {
        assert_eq!(redactor.text(text), clean);
    }
}

#[test]
fn the_arguments_as_a_whole_are_never_logged() {
    let args = r#"{"name":"orders","rows":3}"#;
    let clean = Redactor::new(Some(args)).text(&format!("+ ./create.sh {args}"));
    assert_eq!(clean, "+ ./create.sh [redacted]");
    assert_eq!(Redactor::new(Some("{}")).text("fn f() {}"), "fn f() {}");
}

#[test]
fn the_longest_secret_goes_first() {
    let args = r#"{"a_secret":"abcd","b_secret":"abcdefgh"}"#;
    assert_eq!(Redactor::new(Some(args)).text("xabcdefghx"), "x[redacted]x");
}

#[test]
fn private_keys_go_with_all_their_lines() {
    let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIB\nAAKCAQEA\n-----END RSA PRIVATE KEY-----";
    let text = format!("before\n{key}\nafter");
    assert_eq!(none().text(&text), "before\n[redacted private key]\nafter");
    let one_line = format!("key: {} ok", key.replace('\n', "\\n"));
    assert_eq!(none().text(&one_line), "key: [redacted private key] ok");
    let pgp = "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----";
    assert_eq!(none().text(pgp), "[redacted private key]");
    let public = "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----";
    assert_eq!(none().text(public), public);
}

#[test]
fn a_private_key_that_never_ends_hides_a_bounded_number_of_lines() {
    let mut stream = Stream::default();
    assert!(stream.clean(&none(), "-----BEGIN PRIVATE KEY-----").is_some());
    for _ in 0..KEY_LINES_MAX {
        assert_eq!(stream.clean(&none(), "MIIEpAIB"), None);
    }
    assert_eq!(stream.clean(&none(), "at last").as_deref(), Some("at last"));
}

#[test]
fn names_tell_what_is_secret() {
    for name in ["DB_PASSWORD", "apiKey", "api-key", "pass", "db.pwd", "clientSecret", "auth"] {
        assert!(looks_secret(name), "{name}");
    }
    for name in ["name", "author", "compass", "keys", "max_tokens", "key_count", "bypass"] {
        assert!(!looks_secret(name), "{name}");
    }
}
