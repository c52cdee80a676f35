//! A served model: its engine on a thread, and its tokenizer and templates.

mod device;
mod device_thread;
mod engine_access;
mod fingerprint;
mod outbox;
mod resident;
#[cfg(test)]
mod tests;

use crate::ask::ask;
use crate::blocking;
use crate::error::{Error, Result};
use crate::metrics::ModelMetrics;
use crate::sessions::SessionTable;
use crate::steering::SteeringStore;
use crate::{ApiError, GrammarError, Grammars, ToolFormat, reply};
use crossbeam_channel::Receiver;
pub use device::SharedDevice;
use device_thread::Follower;
use djinn_device::Ops;
use djinn_engine::{Client, KvShape, Occupancy, Residence, Snapshot};
use djinn_host::{Activations, DEFAULT_CONTEXT, Setup};
use djinn_models::{ChatTemplate, Conversation, GenerationDefaults, Model, Tokenizer};
use djinn_scheduler::Registry;
use djinn_srg::Graph;
use engine_access::EngineAccess;
pub(crate) use engine_access::Loads;
pub(crate) use outbox::AnswerEvent;
use outbox::Outbox;
use resident::{Resident, Starting};
use std::convert::Infallible;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The most exports and imports of a model at a time. Each takes some megabytes of memory.
const TRANSFERS: usize = 4;
/// An engine that hangs must not hold up the metrics.
const COUNTED_WITHIN: Duration = Duration::from_secs(1);
/// Seconds between failures of an engine and the attempts to start it again.
const RESTART_AFTER: [u64; 6] = [0, 1, 2, 5, 10, 30];

/// How to serve a model.
#[derive(Clone, Debug)]
pub struct Serving {
    /// The most sessions of a step, at least 1.
    pub sequences: u32,
    /// Bytes of the KV cache on the device. `None`: a whole context for each session of a step, but at most a quarter
    /// of the device's budget or of the host's available memory; always at least one context.
    pub kv_bytes: Option<u64>,
    /// Bytes of the KV cache in host memory, for swapped sessions.
    pub host_kv_bytes: u64,
    /// The scheduler's parts and constants. Under the policy `none`, which moves no pages, named sessions keep no keys
    /// and values between turns, since they would block others.
    pub scheduler: djinn_scheduler::Settings,
    /// Waits before each attempt to restart a failed engine; the last one counts for all further attempts. By default
    /// 0, 1, 2, 5, 10 and 30 s.
    pub restart_after: Vec<Duration>,
    /// The most named sessions. The least recently used are forgotten first.
    pub sessions: usize,
    /// The most named sessions of one API key.
    pub sessions_per_key: usize,
    /// The time after which an unused session is forgotten, unless its client says otherwise.
    pub session_idle: Duration,
    /// Bytes of pinned host memory for hooks; 0 allows no breakpoints and no steering.
    pub hook_bytes: u64,
    /// The longest pause at a breakpoint, whatever its client says.
    pub longest_pause: Duration,
    /// Bytes of all steering vectors. One API key may use a quarter of them.
    pub steering_bytes: u64,
    /// A folder with steering vectors for all keys: `.json`, `.safetensors` and `.gguf` files, read at start.
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
    /// [`Error::Setting`] for an unknown name.
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

/// A served model. Dropping it frees its memory on the device.
pub struct ServedModel {
    model: Arc<Model>,
    access: Arc<EngineAccess>,
    /// Disconnects when the device is gone.
    device_end: Receiver<Infallible>,
    /// Carries the engine's events to requests.
    pub(crate) outbox: Arc<Outbox>,
    context: u64,
    /// What products with quantised weights are computed from.
    pub(crate) activations: Activations,
    end_tokens: Vec<u32>,
    /// When it was loaded, in seconds since 1970.
    pub(crate) created: u64,
    pub(crate) metrics: ModelMetrics,
    /// The engine's latest counts.
    counted: Mutex<Option<(Occupancy, Instant)>>,
    pub(crate) sessions: Arc<SessionTable>,
    pub(crate) steering: SteeringStore,
    /// Memory for hooks.
    pub(crate) hook_bytes: u64,
    /// How long a pause at a breakpoint may last.
    pub(crate) longest_pause: Duration,
    /// Made for the first request with structured output.
    grammars: OnceLock<std::result::Result<Grammars, GrammarError>>,
    /// Made for the first export or import.
    fingerprint: OnceLock<String>,
    transfers: Arc<Semaphore>,
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedModel").field("model", &self.model).field("context", &self.context).finish()
    }
}

impl ServedModel {
    /// Disconnects when the model's device is gone, after all of its models were dropped.
    pub(crate) fn device_end(&self) -> Receiver<Infallible> {
        self.device_end.clone()
    }

    /// Opens the model at `place` (a directory, a `.gguf` or `.safetensors` file, `synthetic:NAME`), loads it and starts
    /// its engine.
    ///
    /// # Errors
    /// As [`Setup::open`] and [`start`](Self::start).
    pub fn open(place: &str, setup: &Setup, serving: &Serving) -> Result<Self> {
        Self::start(setup.open(place)?, setup, serving, &mut |_, _| ControlFlow::Continue(()))
    }

    /// Loads a model and starts its engine, on a device of its own. `on_progress` gets the bytes loaded and in all,
    /// and may cancel. The default context is [`DEFAULT_CONTEXT`], or the model's if that is less. A failed engine
    /// is restarted on the same device; requests fail meanwhile.
    ///
    /// # Errors
    /// The device does not exist, or is too small for the model and one context of keys and values. Settings of the
    /// scheduler that name no part.
    pub fn start(
        model: Model,
        setup: &Setup,
        serving: &Serving,
        on_progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Self> {
        Ok(SharedDevice::start_all(vec![model], setup, serving, on_progress)?.remove(0))
    }

    /// As [`start`](Self::start), on the caller's devices: `device` makes the first one, and another after each
    /// failure. The setup's device only determines the KV cache's element type.
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

    /// Registers a model: it is loaded at once if there is a `follower`, or else at the first request.
    fn register(
        model: Model,
        (setup, device_end): (&Setup, Receiver<Infallible>),
        serving: &Serving,
        follower: Option<Follower>,
    ) -> Result<(Self, Resident)> {
        if serving.sequences == 0 {
            return Err(Error::Setting("a step must hold one session at least".to_owned()));
        }
        let options = setup.options(&model, DEFAULT_CONTEXT.min(model.graph.max_context));
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
        let (resident, access) = Resident::new(starting, follower);
        let end_tokens = model.end_tokens();
        let created = reply::unix_now();
        let Serving { sessions, sessions_per_key, session_idle, scheduler, .. } = serving;
        let keeps = scheduler.policy != "none";
        let sessions = SessionTable::new(*sessions, *sessions_per_key, *session_idle, keeps);
        let (metrics, grammars) = (ModelMetrics::default(), OnceLock::new());
        let served = ServedModel {
            model,
            access,
            device_end,
            outbox,
            context,
            activations: setup.activations.unwrap_or_default(),
            end_tokens,
            created,
            metrics,
            counted: Mutex::default(),
            sessions: Arc::new(sessions),
            steering,
            hook_bytes: serving.hook_bytes,
            longest_pause: serving.longest_pause,
            grammars,
            fingerprint: OnceLock::new(),
            transfers: Arc::new(Semaphore::new(TRANSFERS)),
        };
        Ok((served, resident))
    }

    /// The most tokens of a sequence.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The model's own name: its directory's or file's.
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// Whether it answers requests now: its engine runs, or will at the next request.
    pub fn is_ready(&self) -> bool {
        self.access.is_ready()
    }

    /// Where it is. Models that share a device are not always on it.
    pub fn residence(&self) -> Residence {
        self.access.residence()
    }

    /// Bytes loaded and in all, while it is being loaded.
    pub(crate) fn progress(&self) -> [u64; 2] {
        self.access.progress()
    }

    pub(crate) fn loads(&self) -> Loads {
        self.access.loads()
    }

    /// Frees the model and loads it again, on a new device of the same name if no other model is on that. Running
    /// requests may finish `within` this time, after which they are cancelled. New ones get 503 until the model is
    /// loaded. Named sessions continue as after a failure: they are computed again. Returns at once. It has no effect
    /// on a model that is not loaded, or is being loaded.
    pub fn reload(&self, within: Duration) {
        self.access.retire("the model is loaded again", within);
    }

    /// Whether its device is lost such that only another process can recover.
    pub(crate) fn has_lost_device(&self) -> bool {
        self.access.has_lost_device()
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

    pub(crate) fn end_tokens(&self) -> &[u32] {
        &self.end_tokens
    }

    pub(crate) fn client(&self) -> Result<Client, ApiError> {
        self.access.client().map_err(|why| ApiError::unavailable(format!("the model is not ready: {why}")))
    }

    /// How often the engine has failed or was told to end.
    pub(crate) fn failures(&self) -> u64 {
        self.access.failures()
    }

    /// The error for a request whose session was lost, and that began when the engine had failed `before` times.
    pub(crate) async fn gone(&self, before: u64) -> ApiError {
        let why = self.access.failure_after(before).await;
        let why = why.unwrap_or_else(|| "its session was ended".to_owned());
        ApiError::unavailable(format!("the model lost this request: {why}"))
    }

    /// The engine's counts and their age, since it may be busy. `None` if it is gone.
    pub(crate) async fn occupancy(&self) -> Option<(Occupancy, Duration)> {
        let client = self.access.client().ok()?;
        let counted = timeout(COUNTED_WITHIN, ask(|answer| client.begin_count(answer))).await;
        let mut latest = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(counted) = counted {
            *latest = counted.map(|occupancy| (occupancy, Instant::now()));
        }
        latest.map(|(occupancy, at)| (occupancy, at.elapsed()))
    }

    /// The engine's snapshot; `None` if it is gone or does not answer in time.
    pub(crate) async fn snapshot(&self) -> Option<Snapshot> {
        let client = self.access.client().ok()?;
        timeout(COUNTED_WITHIN, ask(|answer| client.begin_snapshot(answer))).await.ok()?
    }

    /// A permit to export or import a session.
    ///
    /// # Errors
    /// 429 if others have all of them.
    pub(crate) fn transfer_permit(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        let permit = Arc::clone(&self.transfers).try_acquire_owned();
        let busy = |_| ApiError::busy(format!("{TRANSFERS} sessions are exported or imported already"));
        permit.map_err(busy)
    }

    /// The page format of `client`'s engine.
    pub(crate) async fn kv_shape(&self, client: &Client) -> Result<KvShape, ApiError> {
        let told = ask(|answer| client.begin_shape(answer)).await;
        let told = told.ok_or_else(|| ApiError::unavailable("the model's engine has ended"))?;
        told.map_err(|error| ApiError::of_engine(&error, "id"))
    }

    /// Identifies the model by its results. The first call reads some of its weights.
    pub(crate) fn fingerprint(&self) -> Result<String, ApiError> {
        if let Some(made) = self.fingerprint.get() {
            return Ok(made.clone());
        }
        let made = fingerprint::fingerprint(&self.model);
        let made = made.map_err(|error| ApiError::failed(error.to_string()))?;
        Ok(self.fingerprint.get_or_init(|| made).clone())
    }

    /// Runs blocking work on another thread, of the present task's request.
    pub(crate) async fn work<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&ServedModel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let model = Arc::clone(self);
        let done = blocking::run(move || work(&model)).await;
        done.unwrap_or_else(|| Err(ApiError::failed("the request could not be prepared")))
    }

    /// Makes constraints for the model's tokens. The first call takes some tens of milliseconds.
    pub(crate) fn grammars(&self) -> std::result::Result<&Grammars, GrammarError> {
        let made = self.grammars.get_or_init(|| {
            let tokenizer = self.tokenizer().ok_or(GrammarError::NoEnd)?;
            Grammars::new(tokenizer, &self.end_tokens)
        });
        made.as_ref().map_err(GrammarError::clone)
    }

    /// The text of tokens; `None` without a tokenizer.
    pub(crate) fn text_of(&self, tokens: &[u32]) -> Option<String> {
        self.decoded(tokens, false)
    }

    /// The same without special tokens, as an answer has it.
    pub(crate) fn answer_text(&self, tokens: &[u32]) -> Option<String> {
        self.decoded(tokens, true)
    }

    fn decoded(&self, tokens: &[u32], skip_special: bool) -> Option<String> {
        let mut stream = self.tokenizer()?.stream(skip_special).continuing();
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

    /// The tokens and the text of a conversation in the request's field `messages`, up to where the model speaks if
    /// `prompts`. Names of control tokens in its messages are plain text.
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

    /// Refuses a text that no context could hold, before any work on it.
    fn check_length(&self, tokenizer: &Tokenizer, text: &str, param: &'static str) -> Result<(), ApiError> {
        let fits = tokenizer.check_length(text.len(), self.context);
        fits.map_err(|error| ApiError::too_long(param, error.to_string()))
    }

    /// Special tokens that are parsed as text, with their spelling: those of a call format, and of reasoning.
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
