//! Values of flags, from their text. An error says what was expected.

use djinn_host::{bytes, share};
use std::net::{IpAddr, Ipv4Addr};

pub(super) fn every(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|seconds| (0.1..=60.0).contains(seconds));
    value.ok_or_else(|| "expected seconds, 0.1 to 60".to_owned())
}

pub(super) fn temperature(text: &str) -> Result<f32, String> {
    let value = text.parse::<f32>().ok().filter(|t| t.is_finite() && *t >= 0.0);
    value.ok_or_else(|| "expected a number, 0 or more".to_owned())
}

pub(super) fn penalty(text: &str) -> Result<f32, String> {
    let value = text.parse::<f32>().ok().filter(|f| f.is_finite() && *f > 0.0);
    value.ok_or_else(|| "expected a number above 0".to_owned())
}

pub(super) fn fraction(text: &str) -> Result<f32, String> {
    share(text).map(|value| value as f32)
}

pub(super) fn seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

/// One of a list, which may have a space after each comma.
pub(super) fn token(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "expected token ids, as 1,2,3".to_owned())
}

/// The size of something that may not be empty.
pub(super) fn some_bytes(text: &str) -> Result<u64, String> {
    match bytes(text)? {
        0 => Err("expected a size above 0".to_owned()),
        bytes => Ok(bytes),
    }
}

/// An address to listen on. The name `localhost` stands for the one that every machine has.
pub(super) fn listening(text: &str) -> Result<IpAddr, String> {
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    text.parse().map_err(|_| "expected an IP address or localhost".to_owned())
}

/// A name in the header Host, which is compared without its port.
pub(super) fn host(text: &str) -> Result<String, String> {
    let is_address = text.starts_with('[') && text.ends_with(']');
    let is_name = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    match is_name || is_address {
        true => Ok(text.to_owned()),
        false => Err("expected a name without scheme and port, as example.org or [::1]".to_owned()),
    }
}

/// The header Origin of a page: a scheme and a host. `*` is any.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let is_scheme = |scheme: &str| {
        let rest = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(rest)
    };
    let is_place = |place: &str| {
        let is_foreign = |c: char| c.is_whitespace() || c.is_control() || "/?#@*".contains(c);
        !place.is_empty() && !place.contains(is_foreign)
    };
    let is_origin =
        text.split_once("://").is_some_and(|(scheme, place)| is_scheme(scheme) && is_place(place));
    // Browsers send null for a page of a file.
    match is_origin || ["*", "null"].contains(&text) {
        true => Ok(text.to_owned()),
        false => Err("expected scheme and host without a path, as https://example.org, or *".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_origins_are_those_that_headers_have() {
        for text in ["localhost", "127.0.0.1", "[::1]", "my_host-1.example.org"] {
            assert_eq!(host(text).as_deref(), Ok(text));
        }
        for text in ["", " ", "example.org:80", "http://example.org", "::1", "*", "a b", "a/b"] {
            assert!(host(text).is_err(), "{text}");
        }
        for text in
            ["https://example.org", "http://[::1]:80", "*", "null", "chrome-extension://abc", "app://-"]
        {
            assert_eq!(origin(text).as_deref(), Ok(text));
        }
        for text in [
            "foo",
            "",
            "example.org",
            "https://",
            "://x",
            "https://example.org/",
            "https://a b",
            "https://*.org",
            "https://user@example.org",
            "1http://x",
        ] {
            assert!(origin(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_say_what_was_expected() {
        assert_eq!((token(" 2 "), seed("7"), some_bytes("1KiB")), (Ok(2), Ok(7), Ok(1024)));
        assert_eq!(token(""), Err("expected token ids, as 1,2,3".to_owned()));
        assert!(seed("-1").unwrap_err().starts_with("expected a whole number from 0"));
        assert_eq!(some_bytes("0"), Err("expected a size above 0".to_owned()));
    }
}
