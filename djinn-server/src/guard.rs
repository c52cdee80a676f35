//! Access: API keys, and the hosts and origins that requests name.

use crate::ApiError;
use crate::error::{Error, Result};
use axum::http::{HeaderMap, StatusCode, header};
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;

/// Longest file of keys, in bytes.
const MAX_KEY_FILE: u64 = 1 << 20;

/// A request's tenant: a hash of its key, from which the key cannot be recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tenant([u8; 32]);

impl Tenant {
    /// The salt that separates the tenant's prefixes from those of others.
    pub(crate) fn salt(&self) -> &[u8] {
        &self.0
    }

    /// For logs.
    pub(crate) fn short(&self) -> String {
        self.0[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The accepted API keys. Without any, requests need none. Only hashes are kept.
#[derive(Clone, Default)]
pub struct Keys {
    hashes: Vec<blake3::Hash>,
    /// Keys that may send models.
    pushers: Vec<blake3::Hash>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").field("count", &self.hashes.len()).finish()
    }
}

impl Keys {
    /// These keys.
    ///
    /// # Errors
    /// [`Error::Setting`] for a key that no header can have: empty, or not of visible ASCII characters.
    pub fn new<K: AsRef<str>>(keys: impl IntoIterator<Item = K>) -> Result<Self> {
        let mut hashes = Vec::new();
        for key in keys {
            let key = key.as_ref();
            if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Error::Setting(
                    "an API key must be visible ASCII characters, at least one".to_owned(),
                ));
            }
            hashes.push(Self::hash(key.as_bytes()));
        }
        Ok(Keys { hashes, pushers: Vec::new() })
    }

    /// The keys of a file, one a line. Empty lines and those that begin with `#` are skipped.
    ///
    /// # Errors
    /// [`Error::Host`] if it cannot be read or is longer than 1 MiB, [`Error::Setting`] if it has no key or an invalid
    /// one.
    pub fn from_file(file: &Path) -> Result<Self> {
        let bytes = djinn_models::file::read_bounded(file, MAX_KEY_FILE).map_err(djinn_host::Error::from)?;
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| Error::Setting(format!("{} is not UTF-8", file.display())))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys = Keys::new(lines)?;
        match keys.is_empty() {
            true => Err(Error::Setting(format!("{} holds no API key", file.display()))),
            false => Ok(keys),
        }
    }

    /// The number of different keys.
    pub fn len(&self) -> usize {
        self.hashes.iter().map(blake3::Hash::as_bytes).collect::<HashSet<_>>().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// These keys and those of `other`.
    #[must_use]
    pub fn and(mut self, other: Keys) -> Self {
        self.hashes.extend(other.hashes);
        self.pushers.extend(other.pushers);
        self
    }

    /// The same keys, which may also send models to the server's store and remove them.
    #[must_use]
    pub fn with_push(self) -> Self {
        Keys { pushers: self.hashes.clone(), ..self }
    }

    /// Whether a request's tenant may send models. Without keys, every request may.
    pub(crate) fn may_push(&self, tenant: Option<Tenant>) -> bool {
        let known = |Tenant(hash)| self.pushers.contains(&blake3::Hash::from_bytes(hash));
        self.is_empty() || tenant.is_some_and(known)
    }

    fn hash(key: &[u8]) -> blake3::Hash {
        /// Separates these hashes from all others.
        const CONTEXT: &str = "djinn-server 2026-11 API key";
        blake3::Hash::from_bytes(blake3::derive_key(CONTEXT, key))
    }

    /// The tenant of a request; `None` if no key is needed.
    pub(crate) fn tenant(&self, headers: &HeaderMap) -> Result<Option<Tenant>, ApiError> {
        if self.is_empty() {
            return Ok(None);
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
        });
        let given = bearer.or_else(|| headers.get("x-api-key").map(|key| key.as_bytes()));
        let given = given
            .ok_or_else(|| ApiError::unauthorized("an API key is needed: `Authorization: Bearer KEY`"))?;
        let given = Self::hash(given);
        // Hashes compare in constant time, and all of them are compared.
        let known = self.hashes.iter().fold(false, |known, hash| known | (*hash == given));
        match known {
            true => Ok(Some(Tenant(*given.as_bytes()))),
            false => Err(ApiError::unauthorized("the API key is wrong")),
        }
    }
}

/// The hosts and origins that requests may name. A web page can send requests to any address that its browser reaches;
/// these two headers say which host it names, and where the page is from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessRules {
    /// Allowed names in the header `Host`, without a port. `None`: any.
    pub hosts: Option<Vec<String>>,
    /// Origins of pages that may use the server, such as `https://example.org`; `*` allows any. The server's own
    /// origin is always allowed.
    pub origins: Vec<String>,
}

impl AccessRules {
    /// For a server at `address`: one at a loopback address is asked for by a loopback name.
    pub fn at(address: IpAddr) -> Self {
        let names = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
        let hosts = address.is_loopback().then(|| {
            let own = match address {
                IpAddr::V4(address) => address.to_string(),
                IpAddr::V6(address) => format!("[{address}]"),
            };
            names.into_iter().chain([own]).collect()
        });
        AccessRules { hosts, origins: Vec::new() }
    }

    /// Checks a request's headers. Returns the origin for the response's header, if the request came from a page.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<Option<String>, ApiError> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
        if headers.get_all(header::HOST).iter().nth(1).is_some() {
            return Err(ApiError::invalid("the header Host is given more than once"));
        }
        let Some(host) = text(header::HOST) else {
            return Err(ApiError::invalid("the header Host is missing"));
        };
        if let Some(hosts) = &self.hosts {
            let name = without_port(host);
            if !hosts.iter().any(|known| known.eq_ignore_ascii_case(name)) {
                let message = "the header Host names another server; see --allowed-host";
                return Err(ApiError::refused(StatusCode::FORBIDDEN, message));
            }
        }
        let Some(origin) = text(header::ORIGIN) else { return Ok(None) };
        let own = origin.split_once("://").is_some_and(|(_, place)| place.eq_ignore_ascii_case(host));
        let listed = self.origins.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(origin));
        match (own, listed) {
            (_, true) => Ok(Some(origin.to_owned())),
            (true, false) => Ok(None),
            (false, false) => Err(ApiError::refused(
                StatusCode::FORBIDDEN,
                "pages of this origin may not use the server; see --allowed-origin",
            )),
        }
    }
}

fn without_port(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn keys_are_compared_whole() {
        let keys = Keys::new(["alpha", "beta"]).unwrap();
        let tenant = |headers: &[(&'static str, &'static str)]| keys.tenant(&self::headers(headers));
        let alpha = tenant(&[("authorization", "Bearer alpha")]).unwrap().unwrap();
        assert_eq!(tenant(&[("authorization", "bearer  alpha")]).unwrap(), Some(alpha));
        assert_eq!(tenant(&[("x-api-key", "alpha")]).unwrap(), Some(alpha));
        assert_ne!(tenant(&[("authorization", "Bearer beta")]).unwrap(), Some(alpha));
        for wrong in ["Bearer alph", "Bearer alphaa", "Bearer ", "Basic alpha", "alpha", ""] {
            assert_eq!(
                tenant(&[("authorization", wrong)]).unwrap_err().status,
                StatusCode::UNAUTHORIZED,
                "{wrong}"
            );
        }
        assert_eq!(tenant(&[]).unwrap_err().status, StatusCode::UNAUTHORIZED);
        assert_eq!(Keys::default().tenant(&self::headers(&[])).unwrap(), None);
        for bad in ["", "with space", "tab\t", "ü"] {
            assert!(Keys::new([bad]).is_err(), "{bad:?}");
        }
        assert_eq!(format!("{keys:?}"), "Keys { count: 2 }");
    }

    #[test]
    fn hosts_and_origins_of_others_are_refused() {
        let access = AccessRules::at("127.0.0.1".parse().unwrap());
        for host in ["localhost", "localhost:5556", "LOCALHOST:1", "127.0.0.1:5556", "[::1]:5556"] {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            assert_eq!(access.check(&headers), Ok(None), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:5556", "127.0.0.1.evil.example", "", "[::2]"] {
            let headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static(host))]);
            assert_eq!(access.check(&headers).unwrap_err().status, StatusCode::FORBIDDEN, "{host}");
        }
        let mut twice = headers(&[("host", "localhost")]);
        twice.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert_eq!(access.check(&twice).unwrap_err().status, StatusCode::BAD_REQUEST);
        let with = |origin| headers(&[("host", "localhost:5556"), ("origin", origin)]);
        assert_eq!(access.check(&with("http://localhost:5556")), Ok(None));
        for origin in ["http://localhost:3000", "https://evil.example", "null", ""] {
            assert_eq!(access.check(&with(origin)).unwrap_err().status, StatusCode::FORBIDDEN, "{origin}");
        }
        let listed = AccessRules { origins: vec!["https://good.example".to_owned()], ..access };
        assert_eq!(listed.check(&with("https://good.example")), Ok(Some("https://good.example".to_owned())));
        assert!(listed.check(&with("https://good.example.evil")).is_err());
        let public = AccessRules::at("0.0.0.0".parse().unwrap());
        assert!(public.check(&headers(&[("host", "anything")])).is_ok());
        assert!(public.check(&headers(&[])).is_err(), "HTTP/1.1 asks for the header");
    }
}
