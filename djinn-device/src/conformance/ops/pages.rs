//! Checks of [`CopyPages`].

use super::rig::Rig;
use crate::args::CopyPages;
use crate::kernels::{data, reference};
use crate::{Ops, Space};

/// Pages of the pool.
const POOL: usize = 37;

/// Out of a pool into a run, back, from pool to pool, and a plain copy; between the spaces as well.
pub(super) fn gathers_and_scatters<D: Ops>(rig: &mut Rig<D>) {
    for (count, page_bytes) in [(1, 16), (5, 48), (37, 4096), (16, 8208), (33, 1008), (2, 100_000)] {
        for (listed, spaces) in [
            ([true, false], [Space::Device, Space::Device]),
            ([false, true], [Space::Device, Space::Device]),
            ([true, true], [Space::Device, Space::Device]),
            ([false, false], [Space::Device, Space::Device]),
            ([true, false], [Space::Device, Space::Host]),
            ([false, true], [Space::Host, Space::Device]),
        ] {
            copies(rig, count, page_bytes, listed, spaces);
        }
    }
}

fn copies<D: Ops>(rig: &mut Rig<D>, count: usize, page_bytes: usize, listed: [bool; 2], spaces: [Space; 2]) {
    let lists = listed.map(|listed| listed.then(|| rig.random.permutation(POOL)[..count].to_vec()));
    let pages = listed.map(|listed| if listed { POOL } else { count });
    let (src, dst) = (rig.random.bytes(pages[0] * page_bytes), rig.random.bytes(pages[1] * page_bytes));
    let mut want = dst.clone();
    reference::copy_pages(data::CopyPages {
        src: &src,
        dst: &mut want,
        src_pages: lists[0].as_deref(),
        dst_pages: lists[1].as_deref(),
        page_bytes,
        count,
    });
    let place = |rig: &mut Rig<D>, bytes: &[u8], space: Space| match space {
        Space::Device => rig.upload(bytes),
        Space::Host => rig.upload_host(bytes),
    };
    let (src, dst) = (place(rig, &src, spaces[0]), place(rig, &dst, spaces[1]));
    let [src_pages, dst_pages] = lists.map(|list| list.map(|list| rig.upload::<u32>(&list)));
    let (page_bytes, count) = (page_bytes as u64, count as u32);
    let args = CopyPages { src, dst, src_pages, dst_pages, page_bytes, count };
    args.check();
    rig.enqueued(rig.device.copy_pages(rig.stream, &args));
    rig.device.sync(rig.stream).expect("no failure");
    let got: Vec<u8> = match spaces[1] {
        Space::Device => rig.download(dst),
        Space::Host => rig.device.read_host(dst, <[u8]>::to_vec),
    };
    rig.free_all();
    assert!(got == want, "copy_pages of {count} pages of {page_bytes} bytes, listed {listed:?}, {spaces:?}");
}
