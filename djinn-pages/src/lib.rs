//! Who holds which KV page: block tables, copy-on-write, shared prefixes, and copies between device and host.
//!
//! [`Pages`] is the book of one device's pages and of the host's beside them. It knows no device, no clock and no
//! tokens: a caller asks for changes of [`BlockTable`]s and is told which pages hold nothing yet, and which are to be
//! copied; it says when copies have ended.
//!
//! ```text
//! Gone ──grow──▶ Device ──swap_out──▶ Leaving ──end_copy──▶ Host ──swap_in──▶ Arriving ──end_copy──▶ Device
//! ```
//!
//! A page may be referred to by any number of tables. While it is copied, its table holds it at both ends, so that no
//! page is given to another before the copies that touch it have ended.
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod pages;
mod pool;
mod prefix;
mod table;

pub use pages::Pages;
pub use prefix::PageName;
pub use table::{BlockTable, Duplicate, PageCopies, PagePair, Residency};
