//! Sharded checkpoints: `model.safetensors.index.json` names the file of each tensor.

use super::SafetensorsDir;
use super::header::{MAX_HEADER_BYTES, MAX_TENSORS};
use crate::file::Input;
use crate::{Result, packed};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
}

/// The name of each tensor's file.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(WeightMapVisitor)
    }
}

struct WeightMapVisitor;

impl<'de> Visitor<'de> for WeightMapVisitor {
    type Value = WeightMap;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors and their files")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
        let mut files = BTreeMap::new();
        while let Some((tensor, file)) = map.next_entry()? {
            if files.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("it has more than {MAX_TENSORS} tensors")));
            }
            files.insert(tensor, file);
        }
        Ok(WeightMap(files))
    }
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
    let Index { weight_map: WeightMap(weight_map) } =
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
