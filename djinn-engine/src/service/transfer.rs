//! Export and import of sessions between engines of the same model, with their keys and values.
//!
//! A session is an [image](SessionImage) and its pages. Clients read and write a few pages at a time, so that neither
//! side holds a whole session in memory. The engine's thread only enqueues copies and notes their end.

use super::{Answer, Service};
use crate::{Error, Result, Sampling};
use djinn_device::{DType, Ops, Space};
use djinn_scheduler::{Arrival, Error as SchedulerError, Refusal, Residency, SessionEvent, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How often an import looks for free pages.
const LOOK_FOR_ROOM: Duration = Duration::from_millis(5);

/// How long an import whose pages are being written keeps its model on the device while another model waits.
const IMPORT_LEASE: Duration = Duration::from_secs(2);

/// The format of an engine's pages. Pages of another format are useless to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// Element type of the cache.
    pub dtype: DType,
    /// Tokens of a page.
    pub page_tokens: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Tokens of a prefill chunk.
    pub chunk: u32,
}

/// An unfinished turn: its sampling state, without its tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpenTurn {
    /// Sampling settings. Positions and the seed determine the random numbers.
    pub sampling: Sampling,
    /// Number of tokens that the turn has generated: the last ones of the session. Penalties count them.
    pub generated: u64,
    /// Tokens that it may still generate, at least 1.
    pub tokens_left: u64,
    /// Tokens that end it.
    pub stop_tokens: Vec<u32>,
}

/// A session at rest, without its keys and values: all that an engine needs to continue with the same bits. Sampling
/// settings belong to it only in the middle of a turn, since each turn brings its own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionImage {
    /// All tokens.
    pub tokens: Vec<u32>,
    /// Number of first tokens with keys and values in the session's pages.
    pub context: u64,
    /// Number of first tokens that were ever computed.
    pub computed: u64,
    /// The ranges among them that were computed as prefill chunks. All others were computed row by row.
    pub chunks: Vec<Range<u64>>,
    /// The unfinished turn; `None` between two turns.
    pub turn: Option<OpenTurn>,
}

impl OpenTurn {
    /// What is invalid about the turn, for an image with these numbers of tokens.
    fn problem(&self, image: &SessionImage, vocab: u64, most: u64) -> Option<String> {
        let OpenTurn { sampling, generated, tokens_left, .. } = self;
        let (tokens, context) = (image.tokens.len() as u64, image.context);
        match () {
            // The prompt has at least one token.
            () if *generated >= tokens || context >= tokens => {
                Some(format!("{generated} of {tokens} tokens are generated, and {context} are computed"))
            }
            // A token is chosen once all before it were computed.
            () if *generated > 0 && image.computed + 1 < tokens => Some(format!(
                "{generated} of {tokens} tokens are generated, and only {} were computed",
                image.computed
            )),
            () if *tokens_left == 0 || generated.checked_add(*tokens_left).is_none() || tokens > most => {
                Some(format!("{tokens_left} tokens are left, after {tokens} of {most}"))
            }
            () if sampling.logit_bias.keys().any(|&token| u64::from(token) >= vocab) => {
                Some(format!("biases are outside the vocabulary of {vocab}"))
            }
            () => sampling.check().err().map(|error| error.to_string()),
        }
    }
}

impl SessionImage {
    /// Number of pages with keys and values.
    pub fn pages(&self, shape: &KvShape) -> u32 {
        u32::try_from(self.context.div_ceil(shape.page_tokens.into())).unwrap_or(u32::MAX)
    }

    /// Whether the tokens and prefill chunks of another session begin with those in this one's pages.
    fn begins(&self, tokens: &[u32], chunks: &[Range<u64>]) -> bool {
        let context = self.context as usize;
        let within = |chunks: &[Range<u64>]| -> Vec<Range<u64>> {
            let within = chunks.iter().filter(|chunk| chunk.start < self.context);
            within.map(|chunk| chunk.start..chunk.end.min(self.context)).collect()
        };
        tokens.get(..context) == self.tokens.get(..context) && within(chunks) == within(&self.chunks)
    }

    /// What is invalid about the image.
    fn problem(&self, shape: &KvShape, vocab: u64, most: u64) -> Option<(&'static str, String)> {
        let SessionImage { tokens, context, computed, chunks, turn } = self;
        let count = tokens.len() as u64;
        let chunk = u64::from(shape.chunk).max(1);
        let mut end = 0;
        let bad = chunks.iter().find(|range| {
            let follows = end <= range.start && range.start < range.end && range.end <= *computed;
            let whole = follows && range.start / chunk == (range.end - 1) / chunk;
            end = range.end;
            !whole
        });
        match () {
            () if tokens.is_empty() => Some(("tokens", "there are none".to_owned())),
            () if count > most => Some(("tokens", format!("{count} do not fit a context of {most}"))),
            () if tokens.iter().any(|&token| u64::from(token) >= vocab) => {
                Some(("tokens", format!("some are outside the vocabulary of {vocab}")))
            }
            () if context > computed || *computed > count => {
                Some(("context", format!("{context} of {computed} computed of {count} tokens")))
            }
            () => bad
                .map(|range| ("chunks", format!("{}..{} is none", range.start, range.end)))
                .or_else(|| Some(("turn", turn.as_ref()?.problem(self, vocab, most)?))),
        }
    }
}

/// A session that is being exported. It may continue meanwhile, as long as its computed tokens stay.
#[derive(Clone, Debug)]
pub struct ExportedSession {
    /// The session.
    pub id: SessionId,
    /// Its image at the time of the request.
    pub image: Arc<SessionImage>,
    /// The format of its pages.
    pub shape: KvShape,
    /// The most pages of one read.
    pub most_pages: u32,
}

/// A session that is being imported. Its pages are still to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncomingSession {
    /// Its future id.
    pub id: SessionId,
    /// The most pages of one write.
    pub most_pages: u32,
}

pub(super) enum TransferCommand {
    Shape(Answer<KvShape>),
    Export(SessionId, Answer<ExportedSession>),
    Read(Box<ExportedSession>, Range<u32>, Answer<Vec<u8>>),
    Import(KvShape, Box<SessionImage>, Answer<IncomingSession>),
    Write(SessionId, u32, Vec<u8>, Answer<()>),
    Finish(SessionId, bool, Answer<()>),
}

impl TransferCommand {
    pub(super) fn fail(self, error: Error) {
        match self {
            TransferCommand::Shape(answer) => answer(Err(error)),
            TransferCommand::Export(_, answer) => answer(Err(error)),
            TransferCommand::Read(_, _, answer) => answer(Err(error)),
            TransferCommand::Import(_, _, answer) => answer(Err(error)),
            TransferCommand::Write(_, _, _, answer) | TransferCommand::Finish(_, _, answer) => {
                answer(Err(error))
            }
        }
    }
}

/// Exports and imports under way.
#[derive(Default)]
pub(super) struct Transfers {
    /// Commands that wait for their turn, or for a session to come to rest.
    queue: VecDeque<TransferCommand>,
    /// The copy that uses the pinned buffer.
    under_way: Option<Move>,
    /// Imports that wait for pages, each with its time limit.
    waiting: VecDeque<(SessionImage, Duration, Answer<IncomingSession>)>,
    /// Imports whose pages are being written. `None`: the model had to leave the device, and gave the pages back.
    incoming: BTreeMap<SessionId, Option<Incoming>>,
}

struct Incoming {
    image: SessionImage,
    pages: Vec<u32>,
    /// When its lease ends.
    until: Duration,
}

impl std::fmt::Debug for Transfers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (queued, incoming) = (self.queue.len() + self.waiting.len(), self.incoming.len());
        f.debug_struct("Transfers").field("queued", &queued).field("incoming", &incoming).finish()
    }
}

impl Transfers {
    /// Whether a client waits for work on the device.
    pub(super) fn wants_device(&self) -> bool {
        self.idle_for().is_some()
    }

    /// Whether the model must stay on the device: for a command or a copy. An import that waits for pages can wait longer.
    pub(super) fn is_busy(&self) -> bool {
        !self.queue.is_empty() || self.under_way.is_some()
    }

    /// The time until the next lease of an import ends.
    pub(super) fn lease_left(&self, now: Duration) -> Option<Duration> {
        let ends = self.incoming.values().flatten().map(|incoming| incoming.until);
        ends.filter(|&until| now < until).min().map(|until| until - now)
    }

    /// The time until the next look.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        match self.is_busy() {
            true => Some(Duration::ZERO),
            false => (!self.waiting.is_empty()).then_some(LOOK_FOR_ROOM),
        }
    }

    fn is_lost(&self, id: SessionId) -> bool {
        self.incoming.get(&id).is_some_and(Option::is_none)
    }
}

enum Move {
    Fetch(usize, Answer<Vec<u8>>),
    Store(Answer<()>),
}

/// The result of a command.
enum Done {
    Now,
    /// Try it again later.
    Later(TransferCommand),
}

impl<D: Ops> Service<D> {
    /// The format of the engine's pages.
    pub fn kv_shape(&self) -> KvShape {
        let (engine, kv) = (self.engine(), &self.engine().plan().kv);
        KvShape {
            dtype: kv.dtype,
            page_tokens: kv.page_tokens,
            page_bytes: kv.page_bytes(),
            chunk: engine.chunk(),
        }
    }

    /// Queues a command for [`advance_transfers`](Self::advance_transfers), unless it can be answered at once.
    pub(super) fn transfer(&mut self, command: TransferCommand) {
        match command {
            TransferCommand::Write(id, _, _, answer) if self.transfers.is_lost(id) => {
                answer(Err(Error::ImportLost { session: id.0 }));
            }
            TransferCommand::Finish(id, keeps, answer) if self.transfers.is_lost(id) => {
                answer(self.finish_import(id, keeps));
            }
            command => self.transfers.queue.push_back(command),
        }
    }

    /// Whether a command uses the device.
    pub(super) fn takes_device(&self, command: &TransferCommand) -> bool {
        !matches!(command, TransferCommand::Write(id, ..) | TransferCommand::Finish(id, ..) if self.transfers.is_lost(*id))
    }

    /// Gives the pages of all imports back, since the model leaves the device.
    pub(super) fn drop_imports(&mut self) {
        for (&id, incoming) in &mut self.transfers.incoming {
            if incoming.take().is_some() {
                self.core.scheduler_mut().give_back_pages(id);
            }
        }
    }

    /// Does everything that can be done now.
    ///
    /// # Errors
    /// A failure of the device.
    pub(super) fn advance_transfers(&mut self) -> Result<()> {
        if self.transfers.idle_for().is_none() {
            return Ok(());
        }
        self.end_move()?;
        for _ in 0..self.transfers.queue.len() {
            let Some(command) = self.transfers.queue.pop_front() else { break };
            if let Done::Later(command) = self.carry_out(command)? {
                self.transfers.queue.push_back(command);
            }
        }
        self.look_for_room()
    }

    fn end_move(&mut self) -> Result<()> {
        if self.transfers.under_way.is_none() || !self.batcher.engine_mut().is_staged()? {
            return Ok(());
        }
        match self.transfers.under_way.take() {
            Some(Move::Fetch(pages, answer)) => answer(Ok(self.engine().fetched(pages))),
            Some(Move::Store(answer)) => answer(Ok(())),
            None => {}
        }
        Ok(())
    }

    fn carry_out(&mut self, command: TransferCommand) -> Result<Done> {
        match command {
            TransferCommand::Shape(answer) => answer(Ok(self.kv_shape())),
            TransferCommand::Export(id, answer) => {
                let session = self.state().session(id).filter(|session| !session.is_ending());
                match session {
                    None => answer(Err(Error::NoSession { session: id.0 })),
                    Some(session) if session.phase.is_ready() && !self.is_ending_turn(id) => {
                        answer(Err(Error::NotAtRest { session: id.0 }));
                    }
                    // Its present step must end first.
                    Some(session) if session.in_step > 0 || session.phase.is_ready() => {
                        return Ok(Done::Later(TransferCommand::Export(id, answer)));
                    }
                    Some(session) => answer(self.image(id, session.context)),
                }
            }
            TransferCommand::Read(of, pages, answer) => return self.read(of, pages, answer),
            TransferCommand::Import(shape, image, answer) => {
                let until = self.now() + self.core.scheduler().parts().rules.queue_timeout;
                match self.check_image(&shape, &image) {
                    Err(error) => answer(Err(error)),
                    Ok(()) => self.transfers.waiting.push_back((*image, until, answer)),
                }
            }
            TransferCommand::Write(id, first, bytes, answer) => return self.write(id, first, bytes, answer),
            TransferCommand::Finish(id, keeps, answer) => answer(self.finish_import(id, keeps)),
        }
        Ok(Done::Now)
    }

    fn image(&mut self, id: SessionId, context: u64) -> Result<ExportedSession> {
        let image = self.batcher.image(id, context)?;
        let now = self.now();
        self.core.scheduler_mut().keep_pages(id, now);
        let (shape, most_pages) = (self.kv_shape(), self.engine().staged_pages());
        Ok(ExportedSession { id, image: Arc::new(image), shape, most_pages })
    }

    fn read(&mut self, of: Box<ExportedSession>, pages: Range<u32>, answer: Answer<Vec<u8>>) -> Result<Done> {
        let (id, image) = (of.id, &of.image);
        let lost = || Error::ImageLost { session: id.0 };
        let session = self.state().session(id).filter(|session| session.context >= image.context);
        let same = self.batcher.computed(id).is_ok_and(|(tokens, _, chunks)| image.begins(tokens, chunks));
        // The image was made of a session without changes.
        let same = same && !self.batcher.changes_cache(id, image.context);
        let Some(session) = session.filter(|_| same) else {
            answer(Err(lost()));
            return Ok(Done::Now);
        };
        let (space, table) = match session.residency() {
            Residency::Device => (Space::Device, session.table().device()),
            Residency::Host => (Space::Host, session.table().host()),
            Residency::Gone => {
                answer(Err(lost()));
                return Ok(Done::Now);
            }
            Residency::Leaving | Residency::Arriving => {
                return Ok(Done::Later(TransferCommand::Read(of, pages, answer)));
            }
        };
        if self.transfers.under_way.is_some() {
            return Ok(Done::Later(TransferCommand::Read(of, pages, answer)));
        }
        let asked = pages.start as usize..pages.end as usize;
        let few = asked.len() <= of.most_pages as usize && !asked.is_empty();
        let Some(table) = table.get(asked).filter(|_| few).map(<[u32]>::to_vec) else {
            answer(Err(Error::Option("the session has no such pages, or they are too many at a time")));
            return Ok(Done::Now);
        };
        let now = self.now();
        self.core.scheduler_mut().keep_pages(id, now);
        match self.batcher.engine_mut().begin_fetch(space, &table)? {
            Ok(()) => self.transfers.under_way = Some(Move::Fetch(table.len(), answer)),
            Err(refused) => answer(Err(refused)),
        }
        Ok(Done::Now)
    }

    fn check_image(&self, shape: &KvShape, image: &SessionImage) -> Result<()> {
        let own = self.kv_shape();
        if *shape != own {
            let detail = format!("it is {shape:?}, and this engine's is {own:?}");
            return Err(Error::Image { what: "shape", detail });
        }
        let (vocab, most) = (self.engine().graph().vocab, self.engine().context());
        match image.problem(shape, vocab, most) {
            Some((what, detail)) => Err(Error::Image { what, detail }),
            None => Ok(()),
        }
    }

    /// Takes pages for waiting imports, in order.
    fn look_for_room(&mut self) -> Result<()> {
        while let Some((image, until, answer)) = self.transfers.waiting.pop_front() {
            let (id, pages, now) = (SessionId(self.sessions + 1), image.pages(&self.kv_shape()), self.now());
            match self.core.scheduler_mut().take_pages(id, pages).map(|taken| taken.map(<[u32]>::to_vec)) {
                Ok(Some(pages)) => {
                    self.sessions = id.0;
                    self.batcher.disown(&pages);
                    let most_pages = self.engine().staged_pages();
                    let until = now + IMPORT_LEASE;
                    self.transfers.incoming.insert(id, Some(Incoming { image, pages, until }));
                    answer(Ok(IncomingSession { id, most_pages }));
                }
                Ok(None) if now < until => {
                    self.transfers.waiting.push_front((image, until, answer));
                    break;
                }
                Ok(None) => {
                    self.core.scheduler_mut().demand_nothing();
                    let waited = self.core.scheduler().parts().rules.queue_timeout;
                    let why = Refusal::QueueTimeout { waited };
                    answer(Err(SchedulerError::Refused { session: id, why }.into()));
                }
                Err(error) => answer(Err(error.into())),
            }
        }
        Ok(())
    }

    fn write(&mut self, id: SessionId, first: u32, bytes: Vec<u8>, answer: Answer<()>) -> Result<Done> {
        if self.transfers.under_way.is_some() {
            return Ok(Done::Later(TransferCommand::Write(id, first, bytes, answer)));
        }
        let (page_bytes, most) = (self.kv_shape().page_bytes, self.engine().staged_pages() as usize);
        let (first, count) = (first as usize, bytes.len() / page_bytes.max(1) as usize);
        let whole = bytes.len() as u64 == count as u64 * page_bytes && (1..=most).contains(&count);
        let incoming = match self.transfers.incoming.get(&id) {
            Some(None) => {
                answer(Err(Error::ImportLost { session: id.0 }));
                return Ok(Done::Now);
            }
            incoming => incoming.and_then(Option::as_ref),
        };
        let pages = incoming.and_then(|incoming| incoming.pages.get(first..)?.get(..count));
        let Some(pages) = pages.filter(|_| whole).map(<[u32]>::to_vec) else {
            answer(Err(Error::Option("no such pages are to be written, or they are too many at a time")));
            return Ok(Done::Now);
        };
        match self.batcher.engine_mut().begin_store(&pages, &bytes)? {
            Ok(()) => self.transfers.under_way = Some(Move::Store(answer)),
            Err(refused) => answer(Err(refused)),
        }
        Ok(Done::Now)
    }

    /// Ends an import: the session begins, or its pages are freed.
    fn finish_import(&mut self, id: SessionId, keeps: bool) -> Result<()> {
        let incoming = self.transfers.incoming.remove(&id).ok_or(Error::NoSession { session: id.0 })?;
        if !keeps {
            self.core.scheduler_mut().give_back_pages(id);
            return Ok(());
        }
        let Incoming { image, .. } = incoming.ok_or(Error::ImportLost { session: id.0 })?;
        let SessionImage { tokens, context, computed, chunks, turn } = image;
        let (limit, count) = (self.engine().context(), tokens.len() as u64);
        // The last token needs no room. A turn that had more room in its former engine ends with the context.
        let turn = turn.map(|turn| OpenTurn { tokens_left: turn.tokens_left.min(limit + 1 - count), ..turn });
        let left = turn.as_ref().map(|turn| turn.tokens_left);
        let arrival = Arrival { id, priority: 0, prompt: 0, max_tokens: 1, limit };
        let now = self.now();
        self.batcher.bring_in(id, tokens, (computed, chunks), turn)?;
        let scheduler = self.core.scheduler_mut();
        scheduler.begin_idle(&arrival, context, computed, now)?;
        if let Some(max_tokens) = left {
            scheduler.event(id, SessionEvent::NextTurn { prompt: count - context, max_tokens }, now)?;
            scheduler.event(id, SessionEvent::Pause, now)?;
        }
        Ok(())
    }
}
