//! The page at `/`: one file without external parts. It uses the API as any client does.

use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use std::hash::{BuildHasher, Hasher, RandomState};

/// The page; its style and script carry the mark in place of a nonce.
const PAGE: &str = include_str!("page.html");
const MARK: &str = "@NONCE@";

/// Answers `GET /`. No data is in the page, so it needs no key.
pub(crate) async fn show() -> Response<Body> {
    let half = || RandomState::new().build_hasher().finish();
    let nonce = format!("{:016x}{:016x}", half(), half());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let mut response = crate::reply::of_type("text/html; charset=utf-8", PAGE.replace(MARK, &nonce));
    let headers = response.headers_mut();
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}
