//! Copies of pages. The threads share each page, not the pages, so that they write different bytes whatever the
//! lists say.

use super::Fast;
use super::buffer::Shared;
use super::data::CopyPages;

/// Bytes below which a part of a page is not worth another thread.
const LEAST_BYTES: usize = 64 << 10;

impl Fast {
    /// See [`crate::args::CopyPages`].
    pub(crate) fn copy_pages(&self, mut op: CopyPages<'_>) {
        let dst = Shared::new(std::mem::take(&mut op.dst));
        let share = op.page_bytes.div_ceil(self.pool.threads()).max(LEAST_BYTES).min(op.page_bytes);
        self.pool.run(op.page_bytes.div_ceil(share), |task| {
            let first = task * share;
            let len = share.min(op.page_bytes - first);
            for i in 0..op.count {
                let (from, to) = op.ends(i);
                // SAFETY: tasks write different parts of pages, and a task one at a time.
                #[allow(unsafe_code, reason = "pages are written in parallel")]
                let to = unsafe { dst.slice(to + first, len) };
                to.copy_from_slice(&op.src[from + first..][..len]);
            }
        });
    }
}
