//! Tests of what only the CPU device does: losing itself, draining, guarding freed memory.

use super::*;
use crate::kernels::Reference;
use djinn_device::Error;

fn device() -> CpuDevice {
    CpuDevice::with(CpuConfig::default(), Box::new(Reference))
}

/// A command that panics on the stream's thread: copies of two lengths do not get past `Device::copy`.
fn bad_command(device: &CpuDevice) -> Command {
    let buffer = device.alloc(Space::Host, 64).unwrap();
    Command::Copy { src: buffer.slice(0, 8), dst: buffer.slice(8, 9) }
}

fn lost_on(stream: Stream, result: Result<()>) {
    let Err(Error::DeviceLost { reason }) = result else { panic!("{result:?}") };
    let start = format!("work on stream {} panicked: a copy of ", stream.id());
    assert!(reason.starts_with(&start) && reason.lines().count() == 1, "{reason}");
}

#[test]
fn a_panic_in_a_stream_loses_the_device_and_no_call_hangs() {
    let device = device();
    let (bad, good) = (device.stream().unwrap(), device.stream().unwrap());
    let [after, never, follows] = [(); 3].map(|()| device.event().unwrap());
    let target = device.alloc(Space::Host, 64).unwrap();
    let bad_command = bad_command(&device);
    // Later calls may already see the loss, so their results are not looked at.
    let _ = device.enqueue(bad, bad_command);
    let _ = device.record(bad, after);
    let _ = device.wait(good, after);
    let _ = device.fill(good, target.span(), 1);
    let _ = device.record(good, follows);
    lost_on(bad, device.sync(good));
    lost_on(bad, device.sync(bad));
    for event in [after, never, follows] {
        lost_on(bad, device.sync_event(event));
        lost_on(bad, device.is_done(event).map(|_| ()));
        assert_eq!(device.timestamp(event), None);
    }
    lost_on(bad, device.fill(good, target.span(), 2));
    lost_on(bad, device.wait(good, after));
    lost_on(bad, device.sync(good));
    device.read_host(target.span(), |bytes| assert!(bytes.iter().all(|&b| b == 0), "skipped work ran"));
}

/// A `free` waits for the command under way, and the next that uses the buffer panics. Without the wait the
/// fill would write to pages that are gone.
#[test]
fn work_on_memory_freed_too_early_loses_the_device_without_touching_it() {
    let device = device();
    let (stream, event) = (device.stream().unwrap(), device.event().unwrap());
    let big = device.alloc(Space::Device, 64 << 20).unwrap();
    device.record(stream, event).unwrap();
    for byte in 0..8 {
        device.fill(stream, big.span(), byte).unwrap();
    }
    device.sync_event(event).unwrap();
    device.free(big);
    let Err(Error::DeviceLost { reason }) = device.sync(stream) else { panic!("the handle is freed") };
    assert!(reason.contains(&format!("id: {}", big.id())), "{reason}");
}

#[test]
fn dropping_a_device_drains_its_streams() {
    let device = device();
    let streams = [(); 3].map(|()| device.stream().unwrap());
    let event = device.event().unwrap();
    let buffer = device.alloc(Space::Device, 8 << 20).unwrap();
    for stream in streams {
        device.wait(stream, event).unwrap();
        device.fill(stream, buffer.span(), 3).unwrap();
        device.record(stream, event).unwrap();
    }
    let last = device.events.latest(event).unwrap();
    drop(device);
    assert!(last.at().is_some());
}

#[test]
fn enqueueing_does_not_wait_for_the_work() {
    let device = device();
    let (slow, other) = (device.stream().unwrap(), device.stream().unwrap());
    let (gate, event) = (Arc::new(Completion::default()), device.event().unwrap());
    device.enqueue(slow, Command::Wait(Arc::clone(&gate))).unwrap();
    device.record(slow, event).unwrap();
    device.wait(other, event).unwrap();
    device.record(other, device.event().unwrap()).unwrap();
    assert_eq!(device.is_done(event), Ok(false));
    assert_eq!(device.timestamp(event), None);
    gate.complete(None);
    device.sync(other).unwrap();
    assert_eq!(device.is_done(event), Ok(true));
}

#[test]
fn says_what_it_is() {
    let info = device().info();
    assert!(info.name.starts_with("cpu (") && info.host_memory, "{info:?}");
}
