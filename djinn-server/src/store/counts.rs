//! The store's metrics for Prometheus.

use super::ModelStore;
use crate::metrics::line;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts since the store was opened.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Manifests that became models.
    pub(super) committed: Count,
    /// Manifests that were refused.
    pub(super) refused: Count,
    /// Failed commits.
    pub(super) failed: Count,
    /// Manifests that were deleted, or whose pieces did not come in time.
    pub(super) forgotten: Count,
    /// Complete pieces, and pieces with a wrong hash.
    pub(super) kept: Count,
    pub(super) changed: Count,
    /// Bytes of pieces.
    pub(super) received: Count,
    /// Removed pieces that nothing named, and their bytes.
    collected_pieces: Count,
    collected_bytes: Count,
}

impl Counts {
    /// Counts a removed piece of this size.
    pub(super) fn collected(&self, bytes: u64) {
        self.collected_pieces.add(1);
        self.collected_bytes.add(bytes);
    }
}

impl ModelStore {
    /// Adds the store's part to the page of metrics.
    pub(crate) fn write_metrics(&self, page: &mut String) {
        let counts = &self.counts;
        let (bytes, pieces, models, registered) = {
            let books = self.books();
            let pieces: BTreeSet<_> = books.entries().flat_map(|entry| entry.sizes.keys()).collect();
            let bytes = books.bytes_with(&BTreeMap::new());
            (bytes, pieces.len() as u64, books.models.len() as u64, books.registered.len() as u64)
        };
        let gauges = [
            ("quota_bytes", "Bytes that the store may hold.", self.quota),
            ("bytes", "Bytes of the pieces that are named, each counted once.", bytes),
            ("pieces", "Pieces that models and registered manifests name.", pieces),
            ("models", "Models that were sent.", models),
            ("registered", "Manifests whose pieces are to come.", registered),
        ];
        let totals = [
            ("received_bytes_total", "Bytes of pieces that came.", counts.received.get()),
            ("collected_pieces_total", "Pieces that were removed.", counts.collected_pieces.get()),
            ("collected_bytes_total", "Bytes of these.", counts.collected_bytes.get()),
        ];
        let gauges = gauges.map(|one| ("gauge", one));
        for (kind, (name, help, value)) in gauges.into_iter().chain(totals.map(|one| ("counter", one))) {
            let name = format!("djinn_store_{name}");
            line(page, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}"));
        }
        let pushes = [
            ("committed", &counts.committed),
            ("refused", &counts.refused),
            ("failed", &counts.failed),
            ("forgotten", &counts.forgotten),
        ];
        let pieces = [("kept", &counts.kept), ("hash_mismatch", &counts.changed)];
        for (name, help, outcomes) in [
            ("djinn_store_pushes_total", "Manifests, by what became of them.", &pushes[..]),
            ("djinn_store_pieces_total", "Pieces that came whole, by what became of them.", &pieces[..]),
        ] {
            line(page, format_args!("# HELP {name} {help}\n# TYPE {name} counter"));
            for (outcome, count) in outcomes {
                line(page, format_args!("{name}{{outcome=\"{outcome}\"}} {}", count.get()));
            }
        }
    }
}
