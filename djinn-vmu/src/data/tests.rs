//! Pages: none is lost, none is written by two sequences.

use super::*;
use djinn_device::{CpuConfig, CpuDevice, DType, Math};
use djinn_srg::KvShape;
use proptest::prelude::*;

fn segment(device: &CpuDevice, pages: u32) -> DataSegment {
    let shape = KvShape { layers: 2, kv_heads: 1, head_dim: 4 };
    let layout = KvLayout {
        shape,
        dtype: DType::F32,
        page_tokens: 4,
        pages,
        sequences: 4,
        table_width: 6,
        host_pages: 0,
        check: false,
    };
    DataSegment::new(device, layout).unwrap()
}

fn device() -> CpuDevice {
    CpuDevice::new(CpuConfig { math: Math::Reference, threads: 1, ..CpuConfig::default() }).unwrap()
}

#[derive(Clone, Debug)]
enum Event {
    Open,
    Grow(usize, u64),
    Fork(usize),
    Truncate(usize, u64),
    Release(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Open),
        (any::<usize>(), 0u64..9).prop_map(|(i, n)| Event::Grow(i, n)),
        any::<usize>().prop_map(Event::Fork),
        (any::<usize>(), any::<u64>()).prop_map(|(i, n)| Event::Truncate(i, n)),
        any::<usize>().prop_map(Event::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn pages_out_equal_pages_in(events in prop::collection::vec(event(), 1..200)) {
        let device = device();
        let stream = device.stream().unwrap();
        let mut data = segment(&device, 16);
        let mut live: Vec<Sequence> = Vec::new();
        for event in events {
            match event {
                Event::Open => live.push(Sequence::default()),
                Event::Grow(i, n) if !live.is_empty() => {
                    let i = i % live.len();
                    let (before, free) = (live[i].tokens(), data.free_pages());
                    match data.grow(&device, stream, &mut live[i], n).unwrap() {
                        Ok(()) => prop_assert_eq!(live[i].tokens(), before + n),
                        Err(full) => {
                            prop_assert_eq!(full.free, free);
                            prop_assert_eq!((live[i].tokens(), data.free_pages()), (before, free));
                            prop_assert!(full.requested > full.free || before + n > 24);
                        }
                    }
                }
                Event::Fork(i) if !live.is_empty() => {
                    let fork = data.fork(&live[i % live.len()]);
                    live.push(fork);
                }
                Event::Truncate(i, n) if !live.is_empty() => {
                    let i = i % live.len();
                    let keep = n % (live[i].tokens() + 1);
                    data.truncate(&mut live[i], keep);
                }
                Event::Release(i) if !live.is_empty() => {
                    let i = i % live.len();
                    data.release(live.swap_remove(i));
                }
                _ => {}
            }
            let used: std::collections::HashSet<u32> =
                live.iter().flat_map(|s| s.pages().iter().copied()).collect();
            prop_assert_eq!(used.len() as u32 + data.free_pages(), 16);
        }
        live.into_iter().for_each(|s| data.release(s));
        prop_assert_eq!(data.free_pages(), 16);
    }
}

#[test]
fn a_fork_copies_its_partial_page_before_it_writes() {
    let device = device();
    let stream = device.stream().unwrap();
    let mut data = segment(&device, 8);
    let mut parent = Sequence::default();
    data.grow(&device, stream, &mut parent, 6).unwrap().unwrap();
    let host = device.alloc(Space::Host, data.layout().page_bytes()).unwrap();
    device.write_host(host.span(), |b| b.fill(7));
    device.copy(stream, host.span(), data.page(parent.pages()[1])).unwrap();
    let mut child = data.fork(&parent);
    data.grow(&device, stream, &mut child, 1).unwrap().unwrap();
    assert_eq!(parent.pages()[0], child.pages()[0], "full pages stay shared");
    assert_ne!(parent.pages()[1], child.pages()[1], "the written page is its own");
    device.sync(stream).unwrap();
    device.write_host(host.span(), |b| b.fill(0));
    device.copy(stream, data.page(child.pages()[1]), host.span()).unwrap();
    device.sync(stream).unwrap();
    assert!(device.read_host(host.span(), |b| b.iter().all(|&x| x == 7)), "and holds what the parent's held");
}
