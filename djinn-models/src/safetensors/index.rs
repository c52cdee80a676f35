//! Sharded checkpoints: `model.safetensors.index.json` names the file of each tensor.

use super::SafetensorsDir;
use super::header::MAX_HEADER_BYTES;
use crate::file::Input;
use crate::{Result, packed};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Opens every shard that the index at `path` names, beside it.
pub(super) fn open(path: &Path) -> Result<SafetensorsDir> {
    let input = Input::open(path)?;
    let len = input.source.len();
    if len > MAX_HEADER_BYTES {
        return Err(input.malformed(format!("the index has {len} bytes, the limit is {MAX_HEADER_BYTES}")));
    }
    let mut json = vec![0; len as usize];
    input.read(&mut json, 0, format_args!("the index"))?;
    let Index { weight_map } =
        serde_json::from_slice(&json).map_err(|e| input.malformed(format!("the index: {e}")))?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    let mut shards = Vec::new();
    for name in names {
        // A plain file name: an index must not reach outside its directory.
        if Path::new(name).file_name() != Some(OsStr::new(name)) {
            return Err(input.malformed(format!("shard `{name}` is no plain file name")));
        }
        let Some(shard) = packed::find(&path.with_file_name(name)) else {
            return Err(input.malformed(format!("shard {name} is not there; download the whole checkpoint")));
        };
        shards.push(packed::open(&shard)?);
    }
    let checkpoint = SafetensorsDir::from_inputs(shards)?;
    for (tensor, shard) in &weight_map {
        let found = checkpoint.shard_of(tensor).is_some_and(|file| packed::stands_for(file, shard));
        if !found {
            return Err(input.malformed(format!("tensor {tensor} is not in {shard}")));
        }
    }
    Ok(checkpoint)
}
