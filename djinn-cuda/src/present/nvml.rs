//! What the management library says of a card's memory.

use nvml_wrapper::Nvml;
use nvml_wrapper::struct_wrappers::device::MemoryInfo;
use std::ffi::OsStr;

/// The memory of the card with this UUID, in bytes; `None` where NVML is absent or does not know the card.
pub(crate) fn memory(uuid: &str) -> Option<MemoryInfo> {
    let nvml = Nvml::builder().lib_path(OsStr::new("libnvidia-ml.so.1")).init().ok()?;
    nvml.device_by_uuid(uuid).ok()?.memory_info().ok()
}
