//! Reads the header from front to back through a window of fixed size, never past its limit.

use crate::file::Input;
use crate::{Error, Result};

const WINDOW_BYTES: usize = 64 * 1024;

pub(super) struct Cursor<'a> {
    input: &'a Input,
    /// The end: the file's length, or the longest accepted header.
    limit: u64,
    /// The bytes before `window_end`.
    window: Vec<u8>,
    window_end: u64,
    position: u64,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(input: &'a Input, limit: u64) -> Self {
        Self { input, limit, window: Vec::new(), window_end: 0, position: 0 }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn malformed(&self, detail: String) -> Error {
        self.input.malformed(detail)
    }

    /// Fails unless `count` items of at least `item_bytes` each fit in the rest. Call it before allocating memory for
    /// them.
    pub(super) fn check_count(&self, count: u64, item_bytes: u64, what: &str) -> Result<()> {
        let left = self.limit - self.position;
        if count.checked_mul(item_bytes).is_some_and(|bytes| bytes <= left) {
            return Ok(());
        }
        Err(self.malformed(format!(
            "{what}: {count} at byte {} do not fit in the {left} bytes that are left of the header",
            self.position
        )))
    }

    pub(super) fn bytes<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        let mut out = [0; N];
        self.fill(&mut out, what)?;
        Ok(out)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        Ok(u32::from_le_bytes(self.bytes(what)?))
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        Ok(u64::from_le_bytes(self.bytes(what)?))
    }

    /// A length as u64, then that many bytes of UTF-8.
    pub(super) fn string(&mut self, what: &str) -> Result<String> {
        let len = self.u64(what)?;
        self.check_count(len, 1, what)?;
        let start = self.position;
        let mut bytes = vec![0; len as usize];
        self.fill(&mut bytes, what)?;
        String::from_utf8(bytes).map_err(|e| {
            let at = start + e.utf8_error().valid_up_to() as u64;
            self.malformed(format!("{what}: the text is not UTF-8 at byte {at}"))
        })
    }

    fn fill(&mut self, mut out: &mut [u8], what: &str) -> Result<()> {
        if out.len() as u64 > self.limit - self.position {
            return Err(self.malformed(format!(
                "{what}: the header needs {} bytes at byte {} and {} are left; the file is truncated or corrupt",
                out.len(),
                self.position,
                self.limit - self.position
            )));
        }
        while !out.is_empty() {
            if self.position == self.window_end {
                let len = (self.limit - self.position).min(WINDOW_BYTES as u64);
                self.window.resize(len as usize, 0);
                self.input.read(&mut self.window, self.position, format_args!("{what}"))?;
                self.window_end += len;
            }
            let unread = &self.window[self.window.len() - (self.window_end - self.position) as usize..];
            let taken = unread.len().min(out.len());
            let (head, rest) = out.split_at_mut(taken);
            head.copy_from_slice(&unread[..taken]);
            out = rest;
            self.position += taken as u64;
        }
        Ok(())
    }
}
