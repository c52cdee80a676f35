//! Compiles `kernels/*.cu` with nvcc into one static library, under the feature `cuda`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Machine code for these, and PTX of the last for what comes after: without what `90a` alone has.
const ARCHITECTURES: &str = "80,89,90a";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "DJINN_CUDA_ARCHS"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    // In the repository a link to the folder at its root; in a published package the folder itself.
    let kernels = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
    let kernels = kernels.canonicalize().unwrap_or(kernels);
    println!("cargo:rerun-if-changed={}", kernels.display());
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return;
    }
    if let Err(reason) = build(&kernels) {
        eprintln!("djinn-cuda-sys: {reason}");
        std::process::exit(1);
    }
}

fn build(kernels: &Path) -> Result<(), String> {
    let (nvcc, home) = nvcc()?;
    let entries = std::fs::read_dir(kernels).map_err(|e| format!("{}: {e}", kernels.display()))?;
    let mut sources: Vec<PathBuf> = entries.filter_map(|e| Some(e.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|e| e == "cu"));
    sources.sort();
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    // One call of nvcc compiles and archives; what is linked later needs no device linker.
    let mut command = Command::new(&nvcc);
    command.args(["-lib", "-O3", "-std=c++17", "--threads=0", "-Xcompiler=-fPIC", "-I"]).arg(kernels);
    let architectures = env::var("DJINN_CUDA_ARCHS").unwrap_or_else(|_| ARCHITECTURES.to_owned());
    for arch in architectures.split(',') {
        command.arg(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
    }
    if architectures.split(',').any(|arch| arch == "90a") {
        command.arg("-DDJINN_SM90A");
    }
    let last = architectures.split(',').next_back().expect("split gives at least one part");
    let last = last.trim_end_matches('a');
    command.arg(format!("-gencode=arch=compute_{last},code=compute_{last}"));
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
        .ok_or("the feature cuda needs nvcc 13: set CUDA_HOME, or run scripts/setup-nvcc.sh")?;
    let home = home.or_else(|| Some(nvcc.parent()?.parent()?.to_owned()));
    Ok((nvcc, home.ok_or("nvcc lies in no toolkit; set CUDA_HOME")?))
}
