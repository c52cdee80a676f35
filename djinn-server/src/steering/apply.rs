//! The field `steering` of requests, with EasySteer's names, and its translation for the engine.

use super::Direction;
use super::store::{DefaultUse, SteeringStore};
use crate::ApiError;
use crate::body::{Fields, Part};
use crate::debug::change::{self, Change, MOST_EDITS};
use crate::debug::hooks;
use djinn_engine::debug::{Steering, TokenKind};
use djinn_engine::{Edit, Error as EngineError};
use djinn_models::printable::one_line;
use djinn_srg::Graph;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const MOST_VECTORS: usize = 64;
/// The most layers that one of them may choose.
const MOST_LAYERS: usize = 4096;

/// The tokens of a session that are steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SteeredTokens {
    /// Prompt tokens.
    pub prompt: bool,
    /// Generated tokens.
    pub generation: bool,
}

impl SteeredTokens {
    /// The object `apply` of `part`. Missing fields are true.
    pub(super) fn read(part: &Part) -> Result<Self, ApiError> {
        let apply = part.part("apply")?;
        apply.only(&["prompt", "generation"])?;
        let flag = |name: &str| Ok::<bool, ApiError>(apply.read(name)?.unwrap_or(true));
        Ok(SteeredTokens { prompt: flag("prompt")?, generation: flag("generation")? })
    }

    pub(super) fn json(self) -> Value {
        json!({ "prompt": self.prompt, "generation": self.generation })
    }

    /// `None` for none.
    fn kind(self) -> Option<TokenKind> {
        match (self.prompt, self.generation) {
            (true, true) => Some(TokenKind::Any),
            (true, false) => Some(TokenKind::Prompt),
            (false, true) => Some(TokenKind::Generated),
            (false, false) => None,
        }
    }
}

/// How a vector changes activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SteeringAlgorithm {
    /// It is added.
    #[default]
    Direct,
    /// The values' component along it is removed. A scale of 0 changes nothing, and no other scale matters.
    Erase,
}

impl SteeringAlgorithm {
    fn read(part: &Part) -> Result<Self, ApiError> {
        match part.read::<String>("algorithm")?.as_deref() {
            None | Some("direct") => Ok(SteeringAlgorithm::Direct),
            Some("erase") => Ok(SteeringAlgorithm::Erase),
            Some(other) => {
                let detail =
                    format_args!("must be \"direct\" or \"erase\"; `{}` is not supported", one_line(other));
                Err(part.wrong("algorithm", detail))
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            SteeringAlgorithm::Direct => "direct",
            SteeringAlgorithm::Erase => "erase",
        }
    }

    /// The change by a direction.
    fn edit(self, direction: &[f32], scale: f32) -> Edit {
        match self {
            SteeringAlgorithm::Direct => Edit::add(direction.to_vec(), scale),
            // A direction of length 0 has no component.
            SteeringAlgorithm::Erase if scale == 0.0 || direction.iter().all(|&x| x == 0.0) => {
                Edit::add(direction.to_vec(), 0.0)
            }
            SteeringAlgorithm::Erase => Edit::along(direction.to_vec(), -1.0),
        }
    }
}

/// What steers a request, or a session's requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SteeringUse {
    /// Vectors, in order.
    pub vectors: Vec<VectorUse>,
    /// Changes after them at each hook, in order.
    pub edits: Vec<LastingEdit>,
}

impl SteeringUse {
    /// The field `steering` of a request, if it has one.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub(crate) fn read(fields: &Fields, graph: &Graph) -> Result<Option<Self>, ApiError> {
        match fields.get("steering") {
            None => Ok(None),
            Some(_) => Self::of(&Part::of(fields, "steering")?, graph).map(Some),
        }
    }

    /// The lists `vectors` and `edits` of an object, for the model of `graph`.
    ///
    /// # Errors
    /// 400 that names the field at fault.
    pub(crate) fn of(steering: &Part, graph: &Graph) -> Result<Self, ApiError> {
        steering.only(&["vectors", "edits"])?;
        Ok(SteeringUse { vectors: VectorUse::list(steering)?, edits: LastingEdit::list(steering, graph)? })
    }

    /// As its client wrote it, with defaults, but for the numbers of edits.
    pub(crate) fn json(&self) -> Value {
        let vectors: Vec<Value> = self.vectors.iter().map(VectorUse::json).collect();
        let edits: Vec<Value> = self.edits.iter().map(LastingEdit::json).collect();
        json!({ "vectors": vectors, "edits": edits })
    }

    /// Approximate bytes of its edits.
    pub(crate) fn bytes(&self) -> u64 {
        let of_parts = |edit: &LastingEdit| edit.parts.iter().map(Steering::bytes).sum::<u64>();
        self.edits.iter().map(|edit| size_of::<LastingEdit>() as u64 + of_parts(edit)).sum()
    }
}

/// A change at a hook point of all tokens of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct LastingEdit {
    /// The hook's name.
    pub hook: String,
    /// `set`, `add`, `scale`, `clamp` or `project_out`.
    pub op: &'static str,
    /// The tokens.
    pub tokens: SteeredTokens,
    /// The same for each run of adjacent columns; empty if it is for no tokens.
    pub parts: Vec<Steering>,
}

impl LastingEdit {
    fn list(steering: &Part, graph: &Graph) -> Result<Vec<Self>, ApiError> {
        let all = match steering.get("edits") {
            None => return Ok(Vec::new()),
            Some(Value::Array(all)) => all,
            Some(_) => return Err(steering.wrong("edits", "must be a list")),
        };
        let (place, mut edits, mut count) = (steering.place_of("edits"), Vec::new(), 0);
        for (at, edit) in all.iter().enumerate() {
            let part = Part::new(format!("{place}[{at}]"), Some(edit))?;
            let edit = Self::one(&part, format!("edits[{at}]"), graph)?;
            count += edit.parts.len().max(1);
            if count > MOST_EDITS {
                return Err(change::too_many(steering, "edits"));
            }
            edits.push(edit);
        }
        Ok(edits)
    }

    /// `name` is what its tokens are counted under.
    fn one(part: &Part, name: String, graph: &Graph) -> Result<Self, ApiError> {
        part.only(&[&["hook", "apply"], &change::FIELDS[..]].concat())?;
        let hook: Option<String> = part.read("hook")?;
        let hook = hook.ok_or_else(|| part.wrong("hook", "is missing; see /v1/models/{name}/hooks"))?;
        let hook = hooks::find(graph, &hook, part.place_of("hook"))?;
        let change = Change::new(part, None)?;
        // Every token is changed alike.
        let edits = change.edits(hook, std::slice::from_ref(&(0..1)))?;
        let tokens = SteeredTokens::read(part)?;
        let steering = |tokens: TokenKind| {
            let edits = edits.into_iter();
            edits.map(|(hook, _, edit)| Steering { name: name.clone(), hook, edit, tokens }).collect()
        };
        let parts = tokens.kind().map_or_else(Vec::new, steering);
        Ok(LastingEdit { hook: hook.name.clone(), op: change.op(), tokens, parts })
    }

    fn json(&self) -> Value {
        json!({ "hook": self.hook, "op": self.op, "apply": self.tokens.json() })
    }
}

/// A request's use of a vector.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorUse {
    /// Its name.
    pub source: String,
    /// How it is applied.
    pub algorithm: SteeringAlgorithm,
    /// Its factor.
    pub scale: f32,
    /// The layers to use. `None`: all.
    pub layers: Option<BTreeSet<u64>>,
    /// The tokens to steer.
    pub tokens: SteeredTokens,
}

impl VectorUse {
    fn list(steering: &Part) -> Result<Vec<Self>, ApiError> {
        let vectors: Vec<Value> = steering.read("vectors")?.unwrap_or_default();
        if vectors.len() > MOST_VECTORS {
            return Err(steering.wrong("vectors", format_args!("has more than {MOST_VECTORS} vectors")));
        }
        let place = steering.place_of("vectors");
        let vectors = vectors.iter().enumerate();
        vectors.map(|(at, vector)| Self::one(&Part::new(format!("{place}[{at}]"), Some(vector))?)).collect()
    }

    fn one(part: &Part) -> Result<Self, ApiError> {
        part.only(&["source", "algorithm", "scale", "layers", "normalize", "apply", "params"])?;
        let source: Option<String> = part.read("source")?;
        let source =
            source.ok_or_else(|| part.wrong("source", "is missing; name a vector of /v1/steering"))?;
        let algorithm = SteeringAlgorithm::read(part)?;
        if part.read::<bool>("normalize")?.unwrap_or(false) {
            return Err(part.wrong("normalize", "is not supported: activations do not keep their length"));
        }
        part.part("params")?.only(&[])?;
        let layers: Option<BTreeSet<u64>> = part.read("layers")?;
        if layers.as_ref().is_some_and(|layers| layers.len() > MOST_LAYERS) {
            return Err(part.wrong("layers", format_args!("has more than {MOST_LAYERS} layers")));
        }
        let scale = part.finite("scale")?.unwrap_or(1.0);
        Ok(VectorUse { source, algorithm, scale, layers, tokens: SteeredTokens::read(part)? })
    }

    /// As its client wrote it, with defaults.
    fn json(&self) -> Value {
        json!({
            "source": self.source,
            "algorithm": self.algorithm.name(),
            "scale": self.scale,
            "layers": self.layers,
            "normalize": false,
            "apply": self.tokens.json(),
        })
    }

    /// Adds its edits to `steered`. `place` is its place in the request.
    fn resolve(
        &self,
        store: &SteeringStore,
        tenant: &[u8],
        place: &str,
        steered: &mut Resolving,
    ) -> Result<(), ApiError> {
        let wrong = |field: &str, why: String| ApiError::field(format!("{place}.{field}"), why);
        let found = store.get(tenant, &self.source);
        let (stored, _) = found.ok_or_else(|| {
            let name = one_line(&self.source);
            wrong("source", format!("there is no steering vector `{name}`; see /v1/steering"))
        })?;
        let directions = &stored.vectors.directions;
        if let Some(layers) = &self.layers {
            let known: BTreeSet<u64> =
                directions.iter().filter_map(|direction| hooks::layer(&direction.hook)).collect();
            if let Some(layer) = layers.difference(&known).next() {
                let why = format!("the vector `{}` has no layer {layer}", self.source);
                return Err(wrong("layers", why));
            }
        }
        let Some(tokens) = self.tokens.kind() else { return Ok(()) };
        let chosen = |direction: &&Direction| {
            let layer = hooks::layer(&direction.hook);
            self.layers.as_ref().is_none_or(|layers| layer.is_some_and(|layer| layers.contains(&layer)))
        };
        let chosen = || directions.iter().filter(chosen);
        // A direction and addends, at least, before they are copied.
        let values: u64 = chosen().map(|direction| direction.values.len() as u64).sum();
        steered.take_room(2 * size_of::<f32>() as u64 * values)?;
        steered.hash.update(stored.vectors.digest.as_bytes());
        let how = format!("{:?} {} {:?} {:?}\n", self.algorithm, self.scale, self.layers, self.tokens);
        steered.hash.update(how.as_bytes());
        for direction in chosen() {
            if direction.values.iter().any(|value| !(value * self.scale).is_finite()) {
                return Err(wrong("scale", format!("{} makes values infinite", self.scale)));
            }
            let edit = self.algorithm.edit(&direction.values, self.scale);
            let name = self.source.clone();
            steered.edits.push(Steering { name, hook: direction.hook.clone(), edit, tokens });
        }
        Ok(())
    }
}

/// The memory for hooks that steering may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HookRoom {
    /// All of it.
    pub(crate) bytes: u64,
    /// The sessions that are steered alike, each with its own edits.
    pub(crate) sessions: u64,
}

/// Edits of a turn, under construction.
struct Resolving {
    edits: Vec<Steering>,
    hash: blake3::Hasher,
    room: HookRoom,
    /// Bytes that the edits take in a step, at least.
    need: u64,
}

impl Resolving {
    /// Counts edits that take this many bytes for each session.
    ///
    /// # Errors
    /// 429 if a step has no memory for them.
    fn take_room(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.need += bytes * self.room.sessions;
        match self.need > self.room.bytes {
            true => {
                let (need, have) = (self.need, self.room.bytes);
                Err(ApiError::of_engine(&EngineError::HookMemory { need, have }, "steering"))
            }
            false => Ok(()),
        }
    }
}

/// The standing edits of a turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Steered {
    pub(crate) edits: Vec<Steering>,
    /// A digest that differs between different edits. `None` for none.
    pub(crate) digest: Option<blake3::Hash>,
}

impl Steered {
    /// The steering of a tenant's request: what is `named`, with its vectors at `place`, or else the key's defaults.
    ///
    /// # Errors
    /// 400 that names the vector at fault, 429 for edits that take more than the room.
    pub(crate) fn new(
        store: &SteeringStore,
        tenant: &[u8],
        named: Option<&SteeringUse>,
        place: &str,
        room: HookRoom,
    ) -> Result<Self, ApiError> {
        let default;
        let uses = match named {
            Some(uses) => uses,
            None => {
                let vectors = store.defaults(tenant).into_iter();
                let vectors = vectors.map(|(source, DefaultUse { scale, tokens })| VectorUse {
                    source,
                    algorithm: SteeringAlgorithm::Direct,
                    scale,
                    layers: None,
                    tokens,
                });
                default = SteeringUse { vectors: vectors.collect(), edits: Vec::new() };
                &default
            }
        };
        let mut steered = Resolving { edits: Vec::new(), hash: blake3::Hasher::new(), room, need: 0 };
        for (at, vector) in uses.vectors.iter().enumerate() {
            vector.resolve(store, tenant, &format!("{place}[{at}]"), &mut steered)?;
        }
        for edit in uses.edits.iter().flat_map(|edit| &edit.parts) {
            steered.take_room(edit.bytes())?;
            steered.hash.update(&edit.digest());
            steered.edits.push(edit.clone());
        }
        let Resolving { edits, hash, .. } = steered;
        let digest = (!edits.is_empty()).then(|| hash.finalize());
        Ok(Steered { edits, digest })
    }
}
