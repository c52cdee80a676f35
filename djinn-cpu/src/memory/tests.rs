//! Allocation, accounting and views; misuse panics.

use super::*;

fn memory() -> Memory {
    Memory::new(1000, u64::MAX)
}

#[test]
fn allocations_are_aligned_zeroed_and_apart() {
    let memory = memory();
    let buffers: Vec<_> = [1, 255, 256, 257, 100_000].map(|n| memory.alloc(Space::Host, n).unwrap()).into();
    for (i, &buffer) in buffers.iter().enumerate() {
        // SAFETY: this test is alone with its memory and holds no other view.
        let bytes = unsafe { memory.slice_mut::<u8>(buffer.span()) };
        assert_eq!(bytes.as_ptr().addr() % ALIGN, 0);
        assert!(bytes.iter().all(|&b| b == 0));
        bytes.fill(i as u8 + 1);
    }
    for (i, &buffer) in buffers.iter().enumerate() {
        // SAFETY: as above.
        let bytes = unsafe { memory.slice::<u8>(buffer.span()) };
        assert!(bytes.iter().all(|&b| b == i as u8 + 1));
        assert_eq!(bytes.len() as u64, buffer.len());
    }
}

#[test]
fn the_cap_is_exact_and_ids_are_not_reused() {
    let memory = memory();
    let a = memory.alloc(Space::Device, 999).unwrap();
    let refused = memory.alloc(Space::Device, 2).unwrap_err();
    assert_eq!(refused, out_of_memory(Space::Device, 2, Usage { in_use: 999, peak: 999, limit: 1000 }));
    let b = memory.alloc(Space::Device, 1).unwrap();
    memory.free(a);
    assert_eq!(memory.usage(Space::Device), Usage { in_use: 1, peak: 1000, limit: 1000 });
    assert_eq!(memory.usage(Space::Host).in_use, 0);
    let c = memory.alloc(Space::Device, 998).unwrap();
    assert_eq!(memory.usage(Space::Device).peak, 1000, "the peak does not fall");
    assert!(c.id() != a.id() && c.id() != b.id());
}

#[test]
fn absurd_sizes_are_refused_not_fatal() {
    for len in [u64::MAX, u64::MAX - 255, i64::MAX as u64, i64::MAX as u64 - 4096, 1 << 60] {
        let refused = memory().alloc(Space::Host, len).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { requested_bytes, .. } if requested_bytes == len));
    }
}

#[test]
fn views_are_typed_and_share_bytes() {
    let memory = memory();
    let buffer = memory.alloc(Space::Device, 64).unwrap();
    // SAFETY: the view is the only one and gone after the statement.
    unsafe { memory.slice_mut::<f32>(buffer.slice(16, 8)) }.copy_from_slice(&[1.0, -2.0]);
    // SAFETY: as above.
    let bits = unsafe { memory.slice::<u32>(buffer.slice(12, 12)) };
    assert_eq!(bits, [0, 0x3F80_0000, 0xC000_0000]);
    // SAFETY: as above.
    assert!(unsafe { memory.slice::<u64>(buffer.slice(64, 0)) }.is_empty());
}

#[test]
fn a_free_waits_for_views_in_use() {
    let memory = memory();
    let buffer = memory.alloc(Space::Host, 1 << 20).unwrap();
    std::thread::scope(|scope| {
        let held = memory.hold();
        // SAFETY: nothing writes the buffer, and `held` outlives the view.
        let view = unsafe { memory.slice::<u64>(buffer.span()) };
        let freeing = scope.spawn(|| memory.free(buffer));
        while memory.live.read().unwrap().iter().any(Option::is_some) {
            std::thread::yield_now();
        }
        assert!(!freeing.is_finished() && memory.usage(Space::Host).in_use > 0);
        assert!(view.iter().all(|&w| w == 0));
        drop(held);
    });
    assert_eq!(memory.usage(Space::Host).in_use, 0);
}

#[test]
#[should_panic(expected = "is not allocated on this device")]
fn a_freed_handle_panics() {
    let memory = memory();
    let buffer = memory.alloc(Space::Host, 8).unwrap();
    memory.free(buffer);
    memory.check(buffer.span());
}

#[test]
#[should_panic(expected = "does not fit this device's")]
fn a_foreign_handle_panics() {
    let memory = memory();
    let buffer = memory.alloc(Space::Host, 8).unwrap();
    memory.check(Buffer::from_raw(buffer.id(), Space::Host, 9).span());
}

#[test]
#[should_panic(expected = "is not aligned to 4 bytes")]
fn a_misaligned_view_panics() {
    let memory = memory();
    let buffer = memory.alloc(Space::Host, 8).unwrap();
    // SAFETY: there is no other view.
    unsafe { memory.slice::<f32>(buffer.slice(2, 4)) };
}

#[test]
#[should_panic(expected = "no whole number of 4-byte elements")]
fn a_ragged_view_panics() {
    let memory = memory();
    let buffer = memory.alloc(Space::Host, 8).unwrap();
    // SAFETY: there is no other view.
    unsafe { memory.slice::<f32>(buffer.slice(0, 6)) };
}
