//! Compiles `kernels/*.cu` with nvcc into one static library, under the features `cuda` and `cuda-12040`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is compiled if `DJINN_CUDA_ARCHS` does not say: compute capabilities without their dot.
const ARCHITECTURES: &str = "80,89,90a";

/// `DJINN_CUDA_ARCHS` of a build that is not linked: no kernel is compiled, and no nvcc is needed.
const NONE: &str = "none";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "DJINN_CUDA_ARCHS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    // In the repository a link to the folder at its root; in a published package the folder itself.
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let kernels = kernels.canonicalize().unwrap_or(kernels);
    println!("cargo:rerun-if-changed={}", kernels.display());
    let [cuda_13, cuda_12] =
        ["CARGO_FEATURE_CUDA", "CARGO_FEATURE_CUDA_12040"].map(|name| env::var_os(name).is_some());
    let built = match (cuda_13, cuda_12) {
        (false, false) => Ok(()),
        (true, true) => Err("the features cuda and cuda-12040 exclude each other".to_owned()),
        _ => build(&kernels, cuda_12),
    };
    if let Err(reason) = built {
        eprintln!("djinn-cuda-sys: {reason}");
        std::process::exit(1);
    }
}

/// `for_12`: drivers of CUDA 12.4 refuse what nvcc 13 links.
fn build(kernels: &Path, for_12: bool) -> Result<(), String> {
    let architectures = env::var("DJINN_CUDA_ARCHS").unwrap_or_else(|_| ARCHITECTURES.to_owned());
    if architectures == NONE {
        return Ok(());
    }
    let gencodes = gencodes(&architectures)?;
    let (nvcc, home) = nvcc()?;
    if for_12 {
        let told =
            Command::new(&nvcc).arg("--version").output().map_err(|e| format!("{}: {e}", nvcc.display()))?;
        let told = String::from_utf8_lossy(&told.stdout);
        let release =
            told.split_once("release ").and_then(|(_, rest)| rest.split(',').next()).unwrap_or("unknown");
        if !release.starts_with("12.") {
            let nvcc = nvcc.display();
            return Err(format!(
                "the feature cuda-12040 needs nvcc 12, but {nvcc} is of release {release}: set CUDA_HOME"
            ));
        }
    }
    let entries = std::fs::read_dir(kernels).map_err(|e| format!("{}: {e}", kernels.display()))?;
    let mut sources: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|e| e == "cu"));
    sources.sort();
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    // One call of nvcc compiles and archives; what is linked later needs no device linker.
    let mut command = Command::new(&nvcc);
    command.args(["-lib", "-O3", "-std=c++17", "--threads=0", "-Xcompiler=-fPIC", "-I"]).arg(kernels);
    command.args(gencodes);
    command.arg("-o").arg(out.join("libdjinn_kernels.a")).args(&sources);
    let status = command.status().map_err(|e| format!("{}: {e}", nvcc.display()))?;
    if !status.success() {
        return Err(format!("nvcc failed ({status})"));
    }
    println!("cargo:rustc-link-search=native={}", out.display());
    for library in ["lib64", "lib"] {
        println!("cargo:rustc-link-search=native={}", home.join(library).display());
    }
    println!("cargo:rustc-link-lib=static=djinn_kernels");
    println!("cargo:rustc-link-lib=static=cudart_static");
    for library in ["stdc++", "dl", "rt", "pthread"] {
        println!("cargo:rustc-link-lib={library}");
    }
    Ok(())
}

/// nvcc's options for machine code of each architecture, and PTX for the cards that come after: of the last without a
/// letter, since others have neither what `90a` has nor code for it.
fn gencodes(architectures: &str) -> Result<Vec<String>, String> {
    let mut options = Vec::new();
    let mut last = None;
    for arch in architectures.split(',').map(str::trim) {
        let number = arch.strip_suffix(['a', 'f']).unwrap_or(arch);
        if !number.parse::<u32>().is_ok_and(|number| number >= 80) {
            return Err(format!(
                "DJINN_CUDA_ARCHS={architectures}: {arch:?} is no compute capability from 80 on, as in 80,90a"
            ));
        }
        options.push(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
        last = if number == arch { Some(arch) } else { last };
    }
    options.extend(last.map(|last| format!("-gencode=arch=compute_{last},code=compute_{last}")));
    Ok(options)
}

/// The compiler and the toolkit's folder.
fn nvcc() -> Result<(PathBuf, PathBuf), String> {
    let named = env::var_os("NVCC").map(PathBuf::from);
    let home = ["CUDA_HOME", "CUDA_PATH"].iter().find_map(env::var_os).map(PathBuf::from);
    let in_path = || {
        let paths = env::var_os("PATH")?;
        let folders = env::split_paths(&paths).filter(|dir| dir.is_absolute());
        folders.map(|dir| dir.join("nvcc")).find(|path| path.is_file())
    };
    let nvcc = named
        .or_else(|| home.as_ref().map(|home| home.join("bin/nvcc")))
        .or_else(in_path)
        .or_else(|| Some(PathBuf::from("/usr/local/cuda/bin/nvcc")))
        .filter(|path| path.is_file())
        .ok_or("the CUDA device needs nvcc: set CUDA_HOME, or run scripts/setup-nvcc.sh")?;
    let home = home.or_else(|| Some(nvcc.parent()?.parent()?.to_owned()));
    Ok((nvcc, home.ok_or("nvcc lies in no toolkit; set CUDA_HOME")?))
}
