//! A model that is served: its engine on a thread of its own, and its way from text to tokens.

mod device;
mod device_thread;
mod fingerprint;
mod outbox;
mod resident;
mod slot;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::metrics::ModelMetrics;
use crate::sessions::SessionTable;
use crate::steering::SteeringStore;
use crate::{ApiError, GrammarError, Grammars, ToolFormat, reply};
pub use device::SharedDevice;
use device_thread::Follower;
use djinn_device::Ops;
use djinn_engine::{Client, KvShape, Occupancy, Residence, Snapshot};
use djinn_host::{Activations, Setup};
use djinn_models::{ChatTemplate, Conversation, GenerationDefaults, Model, Tokenizer};
use djinn_scheduler::Registry;
use djinn_srg::Graph;
use outbox::Outbox;
pub(crate) use outbox::Told;
use resident::{Resident, Starting};
pub(crate) use slot::Loads;
use slot::Slot;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

/// Tokens of a context where the setup names none, if the model has as many.
const CONTEXT: u64 = 4096;
/// Sessions of a model that are exported and imported at a time: each takes some megabytes of memory.
const TRANSFERS: usize = 4;
/// An engine whose thread hangs does not hold up those who count.
const COUNTED_WITHIN: Duration = Duration::from_secs(1);
/// Seconds between failures of an engine and the attempts to start it again.
const RESTART_AFTER: [u64; 6] = [0, 1, 2, 5, 10, 30];

/// How a model is served.
#[derive(Clone, Debug)]
pub struct Serving {
    /// Sessions that a step may hold, at least 1.
    pub sequences: u32,
    /// Bytes of the KV cache on the device. If not given: what as many whole contexts take as a step holds sessions, but
    /// at most a quarter of the device's budget, or of the memory that the host has available; always one context.
    pub kv_bytes: Option<u64>,
    /// Bytes of the KV cache in host memory, for sessions that are parked.
    pub host_kv_bytes: u64,
    /// Which parts the scheduler has, and their constants. Under the policy `none`, which moves no pages, named sessions
    /// keep no keys and values between turns: they would keep others out.
    pub scheduler: djinn_scheduler::Settings,
    /// Waits after a failure of the engine: before the first attempt to start it again, the second and so on; the last
    /// one counts for all others. By default 0, 1, 2, 5, 10 and 30 s.
    pub restart_after: Vec<Duration>,
    /// Sessions that are remembered by name; those that were not used for longest are forgotten for others.
    pub sessions: usize,
    /// The same for those of one API key.
    pub sessions_per_key: usize,
    /// From a session's last use until it is forgotten, where its client does not say.
    pub session_idle: Duration,
    /// Bytes of pinned host memory for what a step reads and changes at hook points; 0 allows no breakpoints and no
    /// steering.
    pub hook_bytes: u64,
    /// How long a pause at a breakpoint may last, whatever its client says.
    pub longest_pause: Duration,
    /// Bytes of the steering vectors that are kept; those of one API key take a quarter of them at most.
    pub steering_bytes: u64,
    /// A folder with steering vectors for all keys: `.json`, `.safetensors` and `.gguf` files, which are read at start.
    pub steering_dir: Option<PathBuf>,
}

impl Default for Serving {
    fn default() -> Self {
        Serving {
            sequences: 16,
            kv_bytes: None,
            host_kv_bytes: 0,
            scheduler: djinn_scheduler::Settings::default(),
            restart_after: RESTART_AFTER.map(Duration::from_secs).to_vec(),
            sessions: 4096,
            sessions_per_key: 1024,
            session_idle: Duration::from_secs(30 * 60),
            hook_bytes: 64 << 20,
            longest_pause: Duration::from_secs(3600),
            steering_bytes: 256 << 20,
            steering_dir: None,
        }
    }
}

impl Serving {
    /// The same with the scheduler's settings from a file: its table `scheduler`, in YAML or TOML.
    ///
    /// # Errors
    /// [`Error::Scheduler`] with the file, the line and the field.
    pub fn scheduler_file(self, file: &Path) -> Result<Self> {
        Ok(Serving { scheduler: Registry::default().file(file)?, ..self })
    }

    /// The same with another eviction policy, one of [`Registry::policies`].
    ///
    /// # Errors
    /// [`Error::Setting`] if there is none of this name.
    pub fn policy(mut self, name: &str) -> Result<Self> {
        let registry = Registry::default();
        let known: Vec<&str> = registry.policies().collect();
        if !known.contains(&name) {
            let known = known.join(", ");
            return Err(Error::Setting(format!("there is no policy `{name}`; known names: {known}")));
        }
        self.scheduler.policy = name.to_owned();
        Ok(self)
    }
}

/// A model that is served. What it has on its device is freed when this is dropped.
pub struct ServedModel {
    model: Arc<Model>,
    slot: Arc<Slot>,
    outbox: Arc<Outbox>,
    context: u64,
    activations: Activations,
    end_tokens: Vec<u32>,
    created: u64,
    metrics: ModelMetrics,
    /// What the engine told last of what it holds.
    counted: Mutex<Option<(Occupancy, Instant)>>,
    sessions: Arc<SessionTable>,
    steering: SteeringStore,
    longest_pause: Duration,
    /// Made when a request first asks for structured output.
    grammars: OnceLock<std::result::Result<Grammars, GrammarError>>,
    /// Made when a session is first exported or imported.
    fingerprint: OnceLock<String>,
    transfers: Arc<Semaphore>,
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedModel").field("model", &self.model).field("context", &self.context).finish()
    }
}

impl ServedModel {
    /// Opens the model at `place` (a directory, a `.gguf` or `.safetensors` file, `synthetic:NAME`), loads it and starts
    /// its engine.
    ///
    /// # Errors
    /// As [`Setup::open`] and [`start`](Self::start).
    pub fn open(place: &str, setup: &Setup, serving: &Serving) -> Result<Self> {
        Self::start(setup.open(place)?, setup, serving, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Loads a model and starts its engine, on a device of its own; `on_progress` gets the bytes that are loaded and the bytes
    /// in all, and may break off. The context is 4096 tokens where the setup names none, or what the model has if that is
    /// less. An engine that fails or panics later is started again on the same device; requests fail meanwhile.
    ///
    /// # Errors
    /// The device is not there, or does not hold the model and one context of keys and values; settings of the scheduler
    /// that name no part.
    pub fn start(
        model: Model,
        setup: &Setup,
        serving: &Serving,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        Ok(SharedDevice::start_all(vec![model], setup, serving, on_progress)?.remove(0))
    }

    /// [`start`](Self::start) on devices of the caller's own: `device` makes the first one, and another after each failure.
    /// The setup's device says no more than which elements the KV cache has.
    ///
    /// # Errors
    /// As [`start`](Self::start), or as `device`.
    pub fn start_on<D: Ops + 'static>(
        device: impl FnMut() -> djinn_device::Result<D> + Send + 'static,
        model: Model,
        setup: &Setup,
        serving: &Serving,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        Ok(SharedDevice::start_on(device, vec![model], setup, serving, on_progress)?.remove(0))
    }

    /// A model that is loaded at once, as `follower` is told, or when it is asked for something.
    fn register(
        model: Model,
        setup: &Setup,
        serving: &Serving,
        follower: Option<Follower>,
    ) -> Result<(Self, Resident)> {
        if serving.sequences == 0 {
            return Err(Error::Setting("a step must hold one session at least".to_owned()));
        }
        let options = setup.options(&model, CONTEXT.min(model.graph.max_context));
        let steering = SteeringStore::new(serving.steering_bytes);
        let steering = match &serving.steering_dir {
            Some(folder) => steering.with_folder(folder, &model.graph)?,
            None => steering,
        };
        let model = Arc::new(model);
        let outbox = Outbox::new();
        let starting = Starting {
            model: Arc::clone(&model),
            setup: *setup,
            options,
            serving: serving.clone(),
            outbox: Arc::clone(&outbox),
        };
        let context = starting.context();
        let (resident, slot) = Resident::new(starting, follower);
        let mut end_tokens = model.defaults.eos.clone();
        end_tokens.extend(model.tokenizer.iter().flat_map(Tokenizer::end_tokens));
        end_tokens.sort_unstable();
        end_tokens.dedup();
        let created = reply::unix_now();
        let Serving { sessions, sessions_per_key, session_idle, scheduler, .. } = serving;
        let keeps = scheduler.policy != "none";
        let sessions = SessionTable::new(*sessions, *sessions_per_key, *session_idle, keeps);
        let (metrics, grammars) = (ModelMetrics::default(), OnceLock::new());
        let served = ServedModel {
            model,
            slot,
            outbox,
            context,
            activations: setup.activations.unwrap_or_default(),
            end_tokens,
            created,
            metrics,
            counted: Mutex::default(),
            sessions: Arc::new(sessions),
            steering,
            longest_pause: serving.longest_pause,
            grammars,
            fingerprint: OnceLock::new(),
            transfers: Arc::new(Semaphore::new(TRANSFERS)),
        };
        Ok((served, resident))
    }

    /// Tokens that a sequence may have.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// What products with quantised weights are computed from.
    pub(crate) fn activations(&self) -> Activations {
        self.activations
    }

    /// The model's own name: its directory's or file's.
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// Whether it answers requests now: its engine runs, or will once it is asked for something.
    pub fn is_ready(&self) -> bool {
        self.slot.is_ready()
    }

    /// Where it is: models that share a device are not always on it.
    pub fn residence(&self) -> Residence {
        self.slot.residence()
    }

    /// Bytes that are loaded, and in all, while it is on its way to the device.
    pub(crate) fn progress(&self) -> [u64; 2] {
        self.slot.progress()
    }

    /// How it came to its device so far.
    pub(crate) fn loads(&self) -> Loads {
        self.slot.loads()
    }

    /// Frees all that the model has, and loads it again: on a new device of the same name, if no other model is on that.
    /// Requests that run may end first, those that have not ended `within` this time are broken off, and new ones get 503
    /// until the model is loaded. Named sessions go on as after a failure: by computing again. Returns at once; a model
    /// that is not loaded, or is just being loaded, is left alone.
    pub fn reload(&self, within: Duration) {
        self.slot.retire("the model is loaded again", within);
    }

    /// Whether its device is lost in a way that only another process can mend.
    pub(crate) fn has_lost_device(&self) -> bool {
        self.slot.has_lost_device()
    }

    /// When it was loaded, in seconds since 1970.
    pub(crate) fn created(&self) -> u64 {
        self.created
    }

    pub(crate) fn metrics(&self) -> &ModelMetrics {
        &self.metrics
    }

    pub(crate) fn sessions(&self) -> &Arc<SessionTable> {
        &self.sessions
    }

    pub(crate) fn steering(&self) -> &SteeringStore {
        &self.steering
    }

    /// How long a pause at a breakpoint may last.
    pub(crate) fn longest_pause(&self) -> Duration {
        self.longest_pause
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.model.graph
    }

    pub(crate) fn tokenizer(&self) -> Option<&Tokenizer> {
        self.model.tokenizer.as_ref()
    }

    pub(crate) fn template(&self) -> Option<&ChatTemplate> {
        self.model.chat.as_ref()
    }

    pub(crate) fn defaults(&self) -> &GenerationDefaults {
        &self.model.defaults
    }

    pub(crate) fn vocab(&self) -> u64 {
        self.model.graph.vocab
    }

    /// Tokens after which a text ends.
    pub(crate) fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    /// Where the engine's thread puts what it tells requests.
    pub(crate) fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// The engine's client.
    pub(crate) fn client(&self) -> Result<Client, ApiError> {
        self.slot.client().map_err(|why| ApiError::unavailable(format!("the model is not ready: {why}")))
    }

    /// How often the engine has failed, or was told to end.
    pub(crate) fn failures(&self) -> u64 {
        self.slot.failures()
    }

    /// What a request is told whose session was lost, and that began when the engine had failed `before` times.
    pub(crate) async fn gone(&self, before: u64) -> ApiError {
        let why = self.slot.failure_after(before).await;
        let why = why.unwrap_or_else(|| "its session was ended".to_owned());
        ApiError::unavailable(format!("the model lost this request: {why}"))
    }

    /// What the engine holds, and how long ago: it may be busy. `None` if it is gone.
    pub(crate) async fn occupancy(&self) -> Option<(Occupancy, Duration)> {
        let (answer, answered) = oneshot::channel();
        self.slot.client().ok()?.begin_count(move |occupancy| {
            // A client that has left reads no answer.
            let _ = answer.send(occupancy);
        });
        let counted = timeout(COUNTED_WITHIN, answered).await;
        let mut latest = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(counted) = counted {
            *latest = counted.ok().map(|occupancy| (occupancy, Instant::now()));
        }
        latest.map(|(occupancy, at)| (occupancy, at.elapsed()))
    }

    /// What the engine holds and has done, for people who watch; `None` if it is gone, or does not answer in time.
    pub(crate) async fn snapshot(&self) -> Option<Snapshot> {
        let (answer, answered) = oneshot::channel();
        self.slot.client().ok()?.begin_snapshot(move |snapshot| {
            // A client that has left reads no answer.
            let _ = answer.send(snapshot);
        });
        timeout(COUNTED_WITHIN, answered).await.ok()?.ok()
    }

    /// Leave to export or import a session.
    ///
    /// # Errors
    /// 429 if others have it.
    pub(crate) fn transfer_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.transfers).try_acquire_owned();
        let busy = |_| ApiError::busy(format!("{TRANSFERS} sessions are exported or imported already"));
        permit.map_err(busy)
    }

    /// How the engine of `client` keeps keys and values.
    pub(crate) async fn kv_shape(&self, client: &Client) -> Result<KvShape, ApiError> {
        let (answer, answered) = oneshot::channel();
        client.begin_shape(move |shape| {
            // A client that has left reads no answer.
            let _ = answer.send(shape);
        });
        let told = answered.await.map_err(|_| ApiError::unavailable("the model's engine has ended"))?;
        told.map_err(|error| ApiError::of_engine(&error, "id"))
    }

    /// Names the model by what it computes. The first call reads some of its weights.
    pub(crate) fn fingerprint(&self) -> Result<String, ApiError> {
        if let Some(made) = self.fingerprint.get() {
            return Ok(made.clone());
        }
        let made = fingerprint::fingerprint(&self.model);
        let made = made.map_err(|error| ApiError::failed(error.to_string()))?;
        Ok(self.fingerprint.get_or_init(|| made).clone())
    }

    /// Does work that takes a while on a thread that may be busy.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&ServedModel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let model = Arc::clone(self);
        let done = tokio::task::spawn_blocking(move || work(&model)).await;
        done.unwrap_or_else(|_| Err(ApiError::failed("the request could not be prepared")))
    }

    /// What makes constraints for the model's tokens. The first call takes some tens of milliseconds.
    pub(crate) fn grammars(&self) -> std::result::Result<&Grammars, GrammarError> {
        let made = self.grammars.get_or_init(|| {
            let tokenizer = self.tokenizer().ok_or(GrammarError::NoEnd)?;
            Grammars::new(tokenizer, &self.end_tokens)
        });
        made.as_ref().map_err(GrammarError::clone)
    }

    /// The text of tokens; none without a tokenizer.
    pub(crate) fn text_of(&self, tokens: &[u32]) -> Option<String> {
        let mut stream = self.tokenizer()?.stream(false).continuing();
        let mut text: String = tokens.iter().map(|&token| stream.push(token).unwrap_or_default()).collect();
        text += &stream.finish();
        Some(text)
    }

    fn needs_tokenizer(&self, param: &'static str) -> Result<&Tokenizer, ApiError> {
        let none =
            || ApiError::field(param, "the model has no tokenizer; give the prompt as a list of token ids");
        self.tokenizer().ok_or_else(none)
    }

    /// The tokens of a text, in the request's field `param`.
    pub(crate) fn encode(
        &self,
        text: &str,
        add_special: bool,
        param: &'static str,
    ) -> Result<Vec<u32>, ApiError> {
        let tokenizer = self.needs_tokenizer(param)?;
        self.check_length(tokenizer, text, param)?;
        tokenizer.encode(text, add_special).map_err(|error| ApiError::of_text(&error, param))
    }

    /// The tokens of a conversation, in the request's field `messages`, and its text: up to where the model speaks, if
    /// `prompts`. Names of control tokens in its messages are text.
    pub(crate) fn encode_conversation(
        &self,
        conversation: &Conversation,
        prompts: bool,
    ) -> Result<(Vec<u32>, String), ApiError> {
        let param = "messages";
        let tokenizer = self.needs_tokenizer(param)?;
        let none = || {
            let error = "the model has no chat template; use /v1/completions";
            ApiError::field(param, error)
        };
        let template = self.template().ok_or_else(none)?;
        let rendered = template.render_conversation(conversation, prompts);
        let rendered = rendered.map_err(|error| ApiError::of_text(&error, param))?;
        self.check_length(tokenizer, &rendered.text, param)?;
        let tokens = tokenizer.encode_rendered(&rendered.text, &rendered.literal);
        let tokens = tokens.map_err(|error| ApiError::of_text(&error, param))?;
        Ok((tokens, rendered.text))
    }

    /// Refuses a text that no context holds before work is done on it.
    fn check_length(&self, tokenizer: &Tokenizer, text: &str, param: &'static str) -> Result<(), ApiError> {
        let fits = tokenizer.check_length(text.len(), self.context);
        fits.map_err(|error| ApiError::too_long(param, error.to_string()))
    }

    /// Special tokens that are read as text, with their spelling: those of calls of a form, and of reasoning.
    pub(crate) fn markers(&self, calls: Option<ToolFormat>) -> Vec<(u32, &'static str)> {
        let Some(tokenizer) = self.tokenizer() else { return Vec::new() };
        let names = calls.map_or(&[][..], |format| format.markers()).iter().chain(&["<think>", "</think>"]);
        let id = |name: &str| tokenizer.token_id(name).filter(|&id| tokenizer.is_special(id));
        names.filter_map(|name| Some((id(name)?, *name))).collect()
    }

    /// Refuses token ids that the model does not have.
    pub(crate) fn check_tokens(&self, tokens: &[u32], param: &'static str) -> Result<(), ApiError> {
        match tokens.iter().find(|&&token| u64::from(token) >= self.vocab()) {
            None => Ok(()),
            Some(token) => Err(ApiError::field(
                param,
                format!("token {token} is outside the vocabulary of {}; give ids below that", self.vocab()),
            )),
        }
    }
}
