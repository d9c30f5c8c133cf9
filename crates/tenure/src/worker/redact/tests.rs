//! Tables of text that must be redacted and text that must not.

use super::*;

/// Texts whose part between `«` and `»` must be redacted.
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

/// Texts without secrets, which must not change.
const NOT_SECRET: [&str; 14] = [
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

fn pattern_redactor() -> Redactor {
    Redactor { args: None, secrets: Vec::new() }
}

#[test]
fn secrets_are_redacted_and_the_surrounding_text_is_kept() {
    for marked in SECRETS {
        let (before, rest) = marked.split_once('«').expect("a mark");
        let (secret, after) = rest.split_once('»').unwrap_or((rest, ""));
        let text = format!("{before}{secret}{after}");
        let redacted = pattern_redactor().redact(&text);
        assert!(!redacted.contains(secret), "{text}\n{redacted}");
        assert!(redacted.contains(REDACTED), "{text}\n{redacted}");
        // The surrounding text is kept, so that the log stays readable.
        assert!(redacted.starts_with(before.trim_end()), "{text}\n{redacted}");
        assert!(redacted.ends_with(after.trim_start()), "{text}\n{redacted}");
    }
}

#[test]
fn text_without_secrets_is_unchanged() {
    for text in NOT_SECRET {
        assert_eq!(pattern_redactor().redact(text), text);
    }
}

#[test]
fn redaction_is_idempotent() {
    for marked in SECRETS {
        let text = marked.replace(['«', '»'], "");
        let once = pattern_redactor().redact(&text);
        assert_eq!(pattern_redactor().redact(&once), once, "{text}");
    }
}

#[test]
fn secret_arguments_are_redacted_everywhere() {
    let args = r#"{"name":"orders","db":{"password":"hunter2","pin":{"secret":[12345,"a\"b\"c"]}},
        "pass":"letmein","private_key":"line one of it\nline two of it","use_token":true}"#;
    let redactor = Redactor::new(Some(args));
    for (text, redacted) in [
        ("connected with hunter2 to orders", "connected with [redacted] to orders"),
        ("hunter2hunter2", "[redacted][redacted]"),
        ("the pin is 12345", "the pin is [redacted]"),
        (r#"a"b"c"#, "[redacted]"),
        (r#"as json a\"b\"c"#, "as json [redacted]"),
        ("letmein!", "[redacted]!"),
        ("> line two of it <", "> [redacted] <"),
        ("true, it is", "true, it is"),
    ] {
        assert_eq!(redactor.redact(text), redacted);
    }
}

#[test]
fn the_whole_arguments_are_redacted() {
    let args = r#"{"name":"orders","rows":3}"#;
    let redacted = Redactor::new(Some(args)).redact(&format!("+ ./create.sh {args}"));
    assert_eq!(redacted, "+ ./create.sh [redacted]");
    assert_eq!(Redactor::new(Some("{}")).redact("fn f() {}"), "fn f() {}");
}

#[test]
fn the_longest_secret_is_replaced_first() {
    let args = r#"{"a_secret":"abcd","b_secret":"abcdefgh"}"#;
    assert_eq!(Redactor::new(Some(args)).redact("xabcdefghx"), "x[redacted]x");
}

#[test]
fn all_lines_of_a_private_key_are_redacted() {
    let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIB\nAAKCAQEA\n-----END RSA PRIVATE KEY-----";
    let text = format!("before\n{key}\nafter");
    assert_eq!(pattern_redactor().redact(&text), "before\n[redacted private key]\nafter");
    let one_line = format!("key: {} ok", key.replace('\n', "\\n"));
    assert_eq!(pattern_redactor().redact(&one_line), "key: [redacted private key] ok");
    let pgp = "-----BEGIN PGP PRIVATE KEY BLOCK-----\nx\n-----END PGP PRIVATE KEY BLOCK-----";
    assert_eq!(pattern_redactor().redact(pgp), "[redacted private key]");
    let public = "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----";
    assert_eq!(pattern_redactor().redact(public), public);
}

#[test]
fn an_unterminated_private_key_hides_a_bounded_number_of_lines() {
    let mut stream = StreamState::default();
    assert!(stream.redact_line(&pattern_redactor(), "-----BEGIN PRIVATE KEY-----").is_some());
    for _ in 0..KEY_LINES_MAX {
        assert_eq!(stream.redact_line(&pattern_redactor(), "MIIEpAIB"), None);
    }
    assert_eq!(stream.redact_line(&pattern_redactor(), "at last").as_deref(), Some("at last"));
}

#[test]
fn secrets_are_recognized_by_name() {
    for name in ["DB_PASSWORD", "apiKey", "api-key", "pass", "db.pwd", "clientSecret", "auth"] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in ["name", "author", "compass", "keys", "max_tokens", "key_count", "bypass"] {
        assert!(!is_secret_name(name), "{name}");
    }
}
