//! What a card's management library (NVML), or `nvidia-smi` where it is absent, says of a card.

use djinn_host::DeviceName;
use std::process::Command;

/// State of the link to the host: PCIe generation and lanes, as trained now and as the card and slot could.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pcie {
    pub(crate) generation: u32,
    pub(crate) max_generation: u32,
    pub(crate) width: u32,
    pub(crate) max_width: u32,
}

pub(crate) struct Gpu {
    /// NVML's number of it, or its UUID.
    id: String,
    #[cfg(feature = "cuda")]
    nvml: Option<nvml_wrapper::Nvml>,
    pub(crate) name: String,
    pub(crate) driver: String,
}

impl Gpu {
    /// The card that `device` names; `None` on the CPU, or if neither knows it.
    pub(crate) fn open(device: DeviceName) -> Option<Gpu> {
        let DeviceName::Cuda(ordinal) = device else { return None };
        let id = id(ordinal, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())?;
        #[cfg(feature = "cuda")]
        {
            let library = std::ffi::OsStr::new("libnvidia-ml.so.1");
            if let Ok(nvml) = nvml_wrapper::Nvml::builder().lib_path(library).init() {
                let name = card(&nvml, &id)?.name().ok()?;
                let driver = nvml.sys_driver_version().ok()?;
                return Some(Gpu { id, nvml: Some(nvml), name, driver });
            }
        }
        let text = smi(&id, "name,driver_version")?;
        let (name, driver) = text.split_once(", ")?;
        Some(Gpu {
            name: name.to_owned(),
            driver: driver.to_owned(),
            #[cfg(feature = "cuda")]
            nvml: None,
            id,
        })
    }

    /// Memory that is in use by all processes, in bytes.
    pub(crate) fn used_bytes(&self) -> Option<u64> {
        #[cfg(feature = "cuda")]
        if let Some(nvml) = &self.nvml {
            return Some(card(nvml, &self.id)?.memory_info().ok()?.used);
        }
        smi(&self.id, "memory.used")?.parse::<u64>().ok().map(|mib| mib << 20)
    }

    /// Its link as it is now; idle cards slow it down, so ask while copies run or just after.
    pub(crate) fn pcie(&self) -> Option<Pcie> {
        #[cfg(feature = "cuda")]
        if let Some(nvml) = &self.nvml {
            let card = card(nvml, &self.id)?;
            return Some(Pcie {
                generation: card.current_pcie_link_gen().ok()?,
                max_generation: card.max_pcie_link_gen().ok()?,
                width: card.current_pcie_link_width().ok()?,
                max_width: card.max_pcie_link_width().ok()?,
            });
        }
        let fields = "pcie.link.gen.current,pcie.link.gen.max,pcie.link.width.current,pcie.link.width.max";
        let text = smi(&self.id, fields)?;
        let numbers: Option<Vec<u32>> = text.split(", ").map(|n| n.parse().ok()).collect();
        let &[generation, max_generation, width, max_width] = numbers?.as_slice() else { return None };
        Some(Pcie { generation, max_generation, width, max_width })
    }
}

/// How the management tools call the card that CUDA counts as `ordinal` among those that are `visible`.
fn id(ordinal: u32, visible: Option<&str>) -> Option<String> {
    match visible {
        None | Some("") => Some(ordinal.to_string()),
        Some(list) => Some(list.split(',').nth(ordinal as usize)?.trim().to_owned()),
    }
}

#[cfg(feature = "cuda")]
fn card<'a>(nvml: &'a nvml_wrapper::Nvml, id: &str) -> Option<nvml_wrapper::Device<'a>> {
    match id.parse() {
        Ok(index) => nvml.device_by_index(index).ok(),
        Err(_) => nvml.device_by_uuid(id).ok(),
    }
}

/// Fields of a card as `nvidia-smi` prints them.
fn smi(id: &str, fields: &str) -> Option<String> {
    let query = format!("--query-gpu={fields}");
    let output =
        Command::new("nvidia-smi").args(["-i", id, &query, "--format=csv,noheader,nounits"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_cards_are_counted_as_the_driver_counts() {
        assert_eq!(id(1, None).as_deref(), Some("1"));
        assert_eq!(id(1, Some("")).as_deref(), Some("1"));
        assert_eq!(id(1, Some("3, 5")).as_deref(), Some("5"));
        assert_eq!(id(0, Some("GPU-1a")).as_deref(), Some("GPU-1a"));
        assert_eq!(id(2, Some("3,5")), None);
        assert!(Gpu::open(DeviceName::Cpu).is_none());
    }
}
