//! Addresses of servers.

use super::*;

#[test]
fn addresses_are_checked_before_anything_is_sent() {
    let remote = |url: &str| Remote::new(url, Some("secret"), None);
    for (url, kept) in [
        ("http://127.0.0.1:5556", "http://127.0.0.1:5556"),
        ("http://localhost/v1/", "http://localhost"),
        ("http://[::1]:80/djinn/v1", "http://[::1]:80/djinn"),
        ("http://user:word@example.org:65535", "http://user:word@example.org:65535"),
    ] {
        assert_eq!(remote(url).unwrap().url(), kept);
    }
    for url in [
        "http://127.0.0.1:99999",
        "http://127.0.0.1:65536/v1",
        "http://127.0.0.1:0",
        "http://127.0.0.1:",
        "http://127.0.0.1:-1",
        "http://127.0.0.1:+80",
        "http://127.0.0.1:x",
        "http://[::1]:99999",
        "http://[::1]x",
        "http://user@example.org:99999",
        "http://a b",
        "http://example.org?x=1",
        "http://example.org/#x",
        "http://",
        "http://:80",
        "127.0.0.1:1",
        "example.org",
        "ftp://example.org",
        "/v1",
        "",
    ] {
        let refused = remote(url);
        assert!(matches!(refused, Err(Error::NoAddress { .. })), "{url}: {refused:?}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_says_so() {
    let error = Remote::new("https://example.org", None, None).unwrap_err();
    let line = crate::one_line(&error);
    assert!(line.starts_with("https://example.org needs TLS, and this build speaks http only; "), "{line}");
    assert!(line.contains("--features hub") && line.ends_with("http://HOST:PORT"), "{line}");
}
