//! The libraries, the card and its context.
#![allow(unsafe_code, reason = "calls into the driver; loading libraries by path")]

use super::nvml;
use crate::config::CUDA;
use crate::{Error, Probe, Result};
use cudarc::cublaslt::sys as cublaslt;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Assumed for what a context takes if NVML does not tell: more than was ever seen.
const ASSUMED_OVERHEAD: u64 = 768 << 20;

/// The context of a card. It is CUDA's *primary* context, which the runtime that launches the kernels shares; it is
/// retained once in a process, since the kernels' modules live in it, and left only after a failure (see [`Share`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    raw: sys::CUcontext,
    ordinal: u32,
    /// The card's memory, in bytes.
    pub(crate) total_bytes: u64,
}

// SAFETY: `raw` is a handle that any thread may make current; the rest are integers.
unsafe impl Send for Context {}

/// What the process knows of a card that it uses.
struct Primary {
    context: Context,
    /// Bytes in use on the card before the context was made.
    used_before: Option<u64>,
    /// Bytes that context and code take, once measured.
    overhead: Option<u64>,
    /// The number of devices that use it.
    shares: u32,
    /// Whether one of them failed.
    failed: bool,
}

/// A device's share of a context. When the last share of a context in which work failed is dropped, the context is
/// destroyed, with all that was ever made in it: such a context refuses everything, and the next device gets a new one.
/// Where the driver refuses that as well, [`CudaDevice::new`](crate::CudaDevice::new) tells it.
pub(crate) struct Share(Context);

impl Drop for Share {
    fn drop(&mut self) {
        self.0.update(|primary| primary.shares -= 1);
    }
}

static PRIMARIES: Mutex<BTreeMap<u32, Primary>> = Mutex::new(BTreeMap::new());

fn primaries() -> MutexGuard<'static, BTreeMap<u32, Primary>> {
    PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Context {
    /// The context of a card, current on this thread.
    pub(crate) fn open(ordinal: u32) -> Result<(Self, Share)> {
        find_cublaslt()?;
        let card = card(ordinal)?;
        let mut primaries = primaries();
        if let Some(primary) = primaries.get_mut(&ordinal) {
            primary.context.make_current()?;
            primary.shares += 1;
            return Ok((primary.context, Share(primary.context)));
        }
        let used_before = uuid(card).and_then(|uuid| nvml::memory(&uuid)).map(|memory| memory.used);
        // SAFETY: the device comes from `cuDeviceGet`.
        let raw = unsafe { result::primary_ctx::retain(card) }.map_err(failed("cuDevicePrimaryCtxRetain"))?;
        let context = Context { raw, ordinal, total_bytes: total_bytes(card)? };
        context.make_current()?;
        primaries.insert(ordinal, Primary { context, used_before, overhead: None, shares: 1, failed: false });
        Ok((context, Share(context)))
    }

    /// Work in it failed: no later call can be relied on.
    pub(crate) fn fail(self) {
        self.update(|primary| primary.failed = true);
    }

    /// Changes what is known of the context, and destroys it if it failed and no device uses it any more.
    fn update(self, change: impl FnOnce(&mut Primary)) {
        let mut primaries = primaries();
        let Some(primary) = primaries.get_mut(&self.ordinal) else { return };
        change(primary);
        if primary.shares == 0 && primary.failed {
            primaries.remove(&self.ordinal);
            self.leave();
        }
    }

    /// Destroys the context. Nothing that was made in it is used again.
    fn leave(self) {
        let Ok(card) = card(self.ordinal) else { return };
        // SAFETY: the device comes from `cuDeviceGet`; the last share is gone, and with it all handles of this process.
        // What fails here fails again, and is told, when the next device is made.
        let _ = unsafe { sys::cuDevicePrimaryCtxReset_v2(card) };
        // SAFETY: gives back what `open` retained, as is allowed after a reset.
        let _ = unsafe { result::primary_ctx::release(card) };
        // SAFETY: no work is enqueued meanwhile: there is no device, and the next one waits for `primaries`.
        unsafe { djinn_cuda_sys::djinn_forget_contexts() };
    }

    /// Makes the context current on the calling thread, as every call into the driver needs.
    pub(crate) fn make_current(self) -> Result<()> {
        // SAFETY: the context was retained, and is left once no device refers to it.
        unsafe { result::ctx::set_current(self.raw) }.map_err(failed("cuCtxSetCurrent"))
    }

    /// Whether [`overhead`](Self::overhead) was measured.
    pub(crate) fn is_measured(self) -> bool {
        primaries().get(&self.ordinal).is_some_and(|primary| primary.overhead.is_some())
    }

    /// Bytes that the context and loaded code take on the card. The first call measures them with NVML: the card's use
    /// now, less that before the context was made, and less `own_bytes`, which the process has allocated. Other
    /// processes that allocate within that second disturb it.
    pub(crate) fn overhead(self, own_bytes: u64) -> u64 {
        let mut primaries = primaries();
        let Some(primary) = primaries.get_mut(&self.ordinal) else { return ASSUMED_OVERHEAD };
        *primary.overhead.get_or_insert_with(|| {
            let used = card(self.ordinal).ok().and_then(uuid).and_then(|uuid| nvml::memory(&uuid));
            let grown = used.zip(primary.used_before).and_then(|(now, before)| {
                now.used.checked_sub(before)?.checked_sub(own_bytes).filter(|&bytes| bytes > 0)
            });
            grown.unwrap_or(ASSUMED_OVERHEAD)
        })
    }

    /// Bytes that are free on the card.
    pub(crate) fn free_bytes(self) -> Result<u64> {
        let (free, _) = result::mem_get_info().map_err(failed("cuMemGetInfo"))?;
        Ok(free as u64)
    }

    /// The card's name.
    pub(crate) fn name(self) -> Result<String> {
        result::device::get_name(card(self.ordinal)?).map_err(failed("cuDeviceGetName"))
    }
}

/// What card `ordinal` is, without making a context on it.
///
/// # Errors
/// If there is no driver, no such card, or the driver is too old.
pub fn probe(ordinal: u32) -> Result<Probe> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    let card = card(ordinal)?;
    Ok(Probe {
        name: result::device::get_name(card).map_err(failed("cuDeviceGetName"))?,
        total_bytes: total_bytes(card)?,
        free_bytes: uuid(card).and_then(|uuid| nvml::memory(&uuid)).map(|memory| memory.free),
        compute_capability: (
            attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(card, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        driver_cuda: version_of(driver_version()?),
    })
}

/// Turns a driver's error into ours, which names the call.
pub(crate) fn failed(call: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |error| {
        let text = |text: Result<&std::ffi::CStr, DriverError>| match text {
            Ok(text) => text.to_string_lossy().into_owned(),
            Err(_) => "unknown".to_owned(),
        };
        let (name, text) = (text(error.error_name()), text(error.error_string()));
        Error::Driver { call, code: error.0 as i32, name, text }
    }
}

/// The card, once driver and ordinal are known to be good.
fn card(ordinal: u32) -> Result<sys::CUdevice> {
    find_driver()?;
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => {
            return Err(Error::NoSuchDevice { ordinal, count: 0 });
        }
        outcome => outcome.map_err(failed("cuInit"))?,
    }
    let found = version_of(driver_version()?);
    if found < CUDA {
        return Err(Error::DriverTooOld { found });
    }
    let count = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
    match i32::try_from(ordinal).ok().filter(|&ordinal| ordinal < count) {
        Some(ordinal) => result::device::get(ordinal).map_err(failed("cuDeviceGet")),
        None => Err(Error::NoSuchDevice { ordinal, count: count as u32 }),
    }
}

fn driver_version() -> Result<i32> {
    let mut version = 0;
    // SAFETY: the library is present and the pointer is to an integer of ours.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("cuDriverGetVersion"))?;
    Ok(version)
}

fn version_of(version: i32) -> (u32, u32) {
    ((version / 1000) as u32, (version % 1000 / 10) as u32)
}

fn total_bytes(card: sys::CUdevice) -> Result<u64> {
    // SAFETY: the device comes from `cuDeviceGet`.
    unsafe { result::device::total_mem(card) }.map(|bytes| bytes as u64).map_err(failed("cuDeviceTotalMem"))
}

fn attribute(card: sys::CUdevice, which: sys::CUdevice_attribute) -> Result<u32> {
    // SAFETY: the device comes from `cuDeviceGet`.
    let value = unsafe { result::device::get_attribute(card, which) };
    value.map(|value| value as u32).map_err(failed("cuDeviceGetAttribute"))
}

/// The card's name for NVML, which counts cards in another order.
fn uuid(card: sys::CUdevice) -> Option<String> {
    let bytes = result::device::get_uuid(card).ok()?.bytes;
    let hex =
        |part: &[std::ffi::c_char]| part.iter().map(|&b| format!("{:02x}", b as u8)).collect::<String>();
    let parts = [&bytes[..4], &bytes[4..6], &bytes[6..8], &bytes[8..10], &bytes[10..]];
    Some(format!("GPU-{}", parts.map(hex).join("-")))
}

fn find_driver() -> Result<()> {
    // SAFETY: looks for the library by name; its initialisers are the driver's.
    let present = || unsafe { sys::is_culib_present() };
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"];
    let folders = folders.iter().map(PathBuf::from).collect();
    find("libcuda.so.1", &present, folders).then_some(()).ok_or(Error::NoDriver)
}

fn find_cublaslt() -> Result<()> {
    find_driver()?;
    // SAFETY: looks for the library by name; its initialisers are NVIDIA's.
    let present = || unsafe { cublaslt::is_culib_present() };
    find(&format!("libcublasLt.so.{}", CUDA.0), &present, cuda_folders()).then_some(()).ok_or(Error::NoCublas)
}

/// Whether a library is present, if need be after it was opened by its path: the loader then finds it by
/// name as well.
fn find(name: &str, present: &dyn Fn() -> bool, folders: Vec<PathBuf>) -> bool {
    present() || folders.iter().any(|folder| open(&folder.join(name)) && present())
}

fn open(library: &Path) -> bool {
    let Ok(path) = CString::new(library.as_os_str().as_encoded_bytes()) else { return false };
    // SAFETY: the path ends with NUL; the library's initialisers are NVIDIA's. The handle is kept for ever.
    library.is_file() && !unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
}

/// Where CUDA's libraries lie outside the loader's path: toolkits, and Python packages of them.
fn cuda_folders() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let toolkits = [variable("CUDA_HOME"), variable("CUDA_PATH"), Some("/usr/local/cuda".into())];
    let mut folders: Vec<PathBuf> =
        toolkits.into_iter().flatten().flat_map(|root| [root.join("lib64"), root.join("lib")]).collect();
    let home = variable("HOME").map(|home| home.join(".local"));
    let fixed = ["/opt/venv", "/opt/conda", "/usr/local", "/usr"].map(|root| Some(root.into()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path: Vec<_> = std::env::split_paths(&path).map(|bin| bin.parent().map(Path::to_owned)).collect();
    let named = [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX")];
    let prefixes = named.into_iter().chain(path).chain([home]).chain(fixed);
    for lib in prefixes.flatten().map(|prefix: PathBuf| prefix.join("lib")) {
        let entries = std::fs::read_dir(&lib).into_iter().flatten().flatten();
        for python in entries.filter(|e| e.file_name().as_encoded_bytes().starts_with(b"python3")) {
            for packages in ["site-packages", "dist-packages"] {
                // Packages of CUDA 13 share a folder, those of 12 have one each.
                for library in ["cu13", "cublas"] {
                    folders.push(python.path().join(packages).join("nvidia").join(library).join("lib"));
                }
            }
        }
    }
    folders
}
