//! The book of KV pages: block tables, copy-on-write, shared prefixes, and copies between device and host.
//!
//! [`Pages`] counts the pages of one device and of the host. It knows no device, no clock and no tokens. A caller
//! requests changes of [`BlockTable`]s, learns which pages are empty and which to copy, and reports the end of copies.
//!
//! ```text
//! Gone ──grow──▶ Device ──swap_out──▶ Leaving ──end_copy──▶ Host ──swap_in──▶ Arriving ──end_copy──▶ Device
//! ```
//!
//! Any number of tables may refer to a page. While a page is copied, its table holds it at both ends. So no page is
//! given to another table before the copies that touch it have ended.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod pages;
mod pool;
mod prefix;
mod table;

pub use pages::Pages;
pub use prefix::PageName;
pub use table::{BlockTable, Duplicate, PageCopies, PagePair, Residency};
