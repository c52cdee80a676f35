//! The records of one model's sessions, within bounds.

use super::{LONGEST_TOOL, SessionUse};
use crate::debug::{Armed, Bell};
use crate::{ApiError, FinishReason, SteeringUse, TokenUsage, reply};
use djinn_engine::debug::Breakpoint;
use djinn_engine::{Client, SessionId};
use djinn_scheduler::{SessionEvent, Signal};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A session of an engine. A restarted engine has other sessions, and another client.
#[derive(Clone, Debug)]
pub(crate) struct EngineSession {
    pub(crate) client: Client,
    pub(crate) id: SessionId,
}

impl EngineSession {
    fn abort(&self) {
        self.client.abort(self.id);
    }
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Records in all.
    most: usize,
    /// Records of one tenant.
    most_of_tenant: usize,
    /// The default time to live of an unused session.
    idle: Duration,
    /// Whether keys and values are kept between turns.
    keeps: bool,
}

/// A tenant, and the name of one of its sessions.
pub(crate) type Key = (Vec<u8>, String);

#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) engine: Option<EngineSession>,
    /// The salt of the engine's session. An imported session shares with none, and accepts any.
    salt: Option<Vec<u8>>,
    /// The digest of its steering.
    pub(super) steered: Option<blake3::Hash>,
    /// Its default steering, if its client has set one.
    pub(super) steering: Option<Arc<SteeringUse>>,
    pub(super) breakpoints: Vec<Armed>,
    pub(super) armed: u64,
    /// Whether it may have been paused at a breakpoint and changed.
    pub(super) is_debugged: bool,
    /// Rings when it is opened or paused.
    pub(crate) bell: Bell,
    /// The running turn.
    turn: Option<(u64, Arc<AtomicBool>)>,
    /// Whether its client holds it.
    pub(super) paused: bool,
    /// Whether the client itself sent the signal for the wait after this turn.
    signalled: bool,
    /// Seconds since 1970.
    pub(super) created: u64,
    pub(super) used: Instant,
    pub(super) time_to_live: Duration,
    pub(super) parent: Option<String>,
    /// The header or field that named it.
    pub(super) named_by: &'static str,
    pub(super) requests: u64,
    pub(super) usage: TokenUsage,
}

impl Record {
    pub(super) fn is_running(&self) -> bool {
        self.turn.is_some()
    }

    fn is_over(&self, now: Instant) -> bool {
        !self.is_running() && now.saturating_duration_since(self.used) >= self.time_to_live
    }
}

#[derive(Debug)]
pub(crate) struct SessionTable {
    bounds: Bounds,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    by_key: BTreeMap<Key, Record>,
    turns: u64,
}

impl Records {
    /// Makes room for one more record of a tenant by removing the least recently used. Returns false if all are busy.
    fn make_room(&mut self, tenant: &[u8], bounds: &Bounds) -> bool {
        let is_tenants = |key: &Key| key.0 == tenant;
        let of_tenant = self.by_key.keys().filter(|key| is_tenants(key)).count();
        let crowded = of_tenant >= bounds.most_of_tenant;
        if !crowded && self.by_key.len() < bounds.most {
            return true;
        }
        let idle =
            self.by_key.iter().filter(|(key, record)| !record.is_running() && (!crowded || is_tenants(key)));
        let Some(oldest) = idle.min_by_key(|(_, record)| record.used).map(|(key, _)| key.clone()) else {
            return false;
        };
        self.remove(&oldest);
        true
    }

    /// Removes a session and ends it; a running request gets an error.
    fn remove(&mut self, key: &Key) -> bool {
        let Some(record) = self.by_key.remove(key) else { return false };
        if let Some((_, deleted)) = &record.turn {
            deleted.store(true, Ordering::Relaxed);
        }
        record.engine.iter().for_each(EngineSession::abort);
        true
    }
}

impl SessionTable {
    /// An empty table: `most` records in all and of one tenant, with a time to live of `idle`. `keeps` says whether
    /// keys and values stay between turns.
    pub(crate) fn new(most: usize, most_of_tenant: usize, idle: Duration, keeps: bool) -> Self {
        let bounds = Bounds { most, most_of_tenant, idle, keeps };
        SessionTable { bounds, records: Mutex::default() }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fresh(&self, parent: Option<String>, named_by: &'static str) -> Record {
        Record {
            engine: None,
            salt: None,
            steered: None,
            steering: None,
            breakpoints: Vec::new(),
            armed: 0,
            is_debugged: false,
            bell: Bell::default(),
            turn: None,
            paused: false,
            signalled: false,
            created: reply::unix_now(),
            used: Instant::now(),
            time_to_live: self.bounds.idle,
            parent,
            named_by,
            requests: 0,
            usage: TokenUsage::default(),
        }
    }

    /// Begins a turn of a session, and makes its record if there is none. Returns the engine's session with its keys
    /// and values, if one waits. `None` if the table is full of running sessions.
    ///
    /// # Errors
    /// 409 for a session that its client holds.
    pub(crate) fn begin(
        self: &Arc<Self>,
        using: SessionUse,
        salt: &[u8],
        steered: Option<blake3::Hash>,
    ) -> Result<Option<(Ticket, Option<EngineSession>)>, ApiError> {
        let mut records = self.records();
        let key = (using.tenant.clone(), using.id.clone());
        if !records.by_key.contains_key(&key) {
            if !records.make_room(&key.0, &self.bounds) {
                return Ok(None);
            }
            let record = self.fresh(using.parent.clone(), using.named_by);
            records.by_key.insert(key.clone(), record);
        }
        records.turns += 1;
        let number = records.turns;
        let Some(record) = records.by_key.get_mut(&key) else { return Ok(None) };
        if record.paused {
            let message = format!("the session `{}` is paused; resume it first", key.1);
            return Err(ApiError::conflict(message, "session_paused"));
        }
        let deleted = Arc::new(AtomicBool::new(false));
        let superseded = record.turn.replace((number, Arc::clone(&deleted))).is_some();
        let mut waits = record.engine.clone();
        if superseded {
            // The earlier turn's ticket ends its session.
            waits = None;
            record.engine = None;
        } else if record.salt.as_ref().is_some_and(|own| own != salt) || record.steered != steered {
            waits.take().iter().for_each(EngineSession::abort);
            record.engine = None;
        }
        (record.salt, record.steered) = (Some(salt.to_vec()), steered);
        record.signalled = false;
        record.used = Instant::now();
        record.requests += 1;
        record.parent = using.parent.clone().or(record.parent.take());
        record.time_to_live = using.time_to_live.unwrap_or(record.time_to_live);
        let armed = record
            .breakpoints
            .iter()
            .filter(|armed| !armed.is_spent())
            .map(|armed| (armed.number, armed.again()))
            .collect();
        drop(records);
        let (table, armed, using) = (Arc::clone(self), Arc::new(armed), Arc::new(using));
        let ticket = Ticket { table, key, number, deleted, armed, using };
        Ok(Some((ticket, waits)))
    }

    /// Makes a record without a request.
    ///
    /// # Errors
    /// 409 for a used name, 429 if the table is full of running sessions.
    pub(super) fn create(
        &self,
        key: &Key,
        parent: Option<String>,
        time_to_live: Option<Duration>,
    ) -> Result<(), ApiError> {
        let mut records = self.records();
        let record = self.insert_new(&mut records, key, self.fresh(parent, "id"))?;
        record.time_to_live = time_to_live.unwrap_or(self.bounds.idle);
        Ok(())
    }

    fn insert_new<'a>(
        &self,
        records: &'a mut Records,
        key: &Key,
        record: Record,
    ) -> Result<&'a mut Record, ApiError> {
        if records.by_key.contains_key(key) {
            return Err(exists(&key.1));
        }
        if !records.make_room(&key.0, &self.bounds) {
            return Err(ApiError::busy("all sessions that may be kept are in use; try again later"));
        }
        Ok(records.by_key.entry(key.clone()).or_insert(record))
    }

    /// Makes the record of a fork of `parent`, or ends the fork if there is no room.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub(super) fn adopt(&self, key: &Key, parent: &str, engine: EngineSession) -> Result<(), ApiError> {
        let mut records = self.records();
        let of = records.by_key.get(&(key.0.clone(), parent.to_owned()));
        let inherited = of.map(|record| {
            let Record { salt, steered, steering, time_to_live, is_debugged, .. } = record.clone();
            (salt, steered, steering, time_to_live, is_debugged)
        });
        match self.insert_new(&mut records, key, self.fresh(Some(parent.to_owned()), "fork")) {
            Ok(record) => {
                if let Some(inherited) = inherited {
                    (record.salt, record.steered, record.steering, record.time_to_live, record.is_debugged) =
                        inherited;
                }
                record.engine = Some(engine);
                Ok(())
            }
            Err(error) => {
                engine.abort();
                Err(error)
            }
        }
    }

    /// Makes the record of an imported session, which may be paused in a turn (`is_held`), or ends the session if
    /// there is no room.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub(super) fn bring_in(&self, key: &Key, engine: EngineSession, is_held: bool) -> Result<(), ApiError> {
        let mut records = self.records();
        match self.insert_new(&mut records, key, self.fresh(None, "import")) {
            Ok(record) => {
                (record.engine, record.paused) = (Some(engine), is_held);
                Ok(())
            }
            Err(error) => {
                engine.abort();
                Err(error)
            }
        }
    }

    /// Whether keys and values stay between turns.
    pub(super) fn keeps(&self) -> bool {
        self.bounds.keeps
    }

    pub(crate) fn record(&self, key: &Key) -> Option<Record> {
        self.records().by_key.get(key).cloned()
    }

    /// Changes a session's record, if it exists.
    pub(super) fn change(&self, key: &Key, change: impl FnOnce(&mut Record)) {
        if let Some(record) = self.records().by_key.get_mut(key) {
            change(record);
        }
    }

    /// All records of a tenant, by name.
    pub(crate) fn of_tenant(&self, tenant: &[u8]) -> Vec<(String, Record)> {
        let records = self.records();
        let own = records.by_key.iter().filter(|((owner, _), _)| owner == tenant);
        own.map(|((_, id), record)| (id.clone(), record.clone())).collect()
    }

    /// Bytes of the edits that steer all sessions but this one.
    pub(super) fn edit_bytes_besides(&self, key: &Key) -> u64 {
        let records = self.records();
        let others = records.by_key.iter().filter(|(other, _)| *other != key);
        others.filter_map(|(_, record)| record.steering.as_ref()).map(|steering| steering.bytes()).sum()
    }

    /// Removes a session and ends it. Returns whether it existed.
    pub(crate) fn remove(&self, key: &Key) -> bool {
        self.records().remove(key)
    }

    pub(crate) fn len(&self) -> usize {
        self.records().by_key.len()
    }

    /// Removes sessions that were not used for their time to live.
    pub(crate) fn sweep(&self) {
        let now = Instant::now();
        let mut records = self.records();
        let over = records.by_key.iter().filter(|(_, record)| record.is_over(now));
        for key in over.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            records.remove(&key);
        }
    }
}

impl Record {
    /// The client sent the signal for the wait after this turn, so none is inferred.
    pub(super) fn is_told(&mut self) {
        self.signalled = self.is_running();
    }
}

pub(super) fn exists(id: &str) -> ApiError {
    let error =
        ApiError::conflict(format!("there is a session `{id}` already; choose another id"), "session_exists");
    ApiError { param: Some("id".into()), ..error }
}

#[derive(Clone, Debug)]
pub(crate) struct TurnResult {
    pub(crate) finish: FinishReason,
    /// The first function that the answer calls.
    pub(crate) tool: Option<String>,
    pub(crate) usage: TokenUsage,
}

/// A request's hold on its session, from the turn's beginning to its end.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    table: Arc<SessionTable>,
    key: Key,
    number: u64,
    deleted: Arc<AtomicBool>,
    /// Breakpoints for a session that is opened for the turn, with their numbers.
    armed: Arc<Vec<(u64, Breakpoint)>>,
    using: Arc<SessionUse>,
}

impl Ticket {
    /// Whether the session was deleted while its turn ran.
    pub(crate) fn is_deleted(&self) -> bool {
        self.deleted.load(Ordering::Relaxed)
    }

    /// The breakpoints for a session that is opened for the turn.
    pub(crate) fn breakpoints(&self) -> Vec<Breakpoint> {
        self.armed.iter().map(|(_, breakpoint)| breakpoint.clone()).collect()
    }

    /// Records the session that the engine has opened for the turn.
    pub(crate) fn opened(&self, engine: EngineSession) {
        let mut records = self.table.records();
        match self.own(&mut records) {
            Some(record) => {
                record.opened(&engine, &self.armed, &self.table, &self.key);
                record.engine = Some(engine);
                record.bell.ring();
            }
            None if self.is_deleted() => engine.abort(),
            // It ends with its turn.
            None => {}
        }
    }

    /// The record, as long as the turn is its latest.
    fn own<'a>(&self, records: &'a mut Records) -> Option<&'a mut Record> {
        let record = records.by_key.get_mut(&self.key)?;
        record.turn.as_ref().is_some_and(|&(number, _)| number == self.number).then_some(record)
    }

    /// Ends the turn. Without a result, its client has left. `engine` is its session, if one was opened.
    pub(crate) fn end(&self, engine: Option<EngineSession>, result: Option<TurnResult>) {
        let mut records = self.table.records();
        let Some(record) = self.own(&mut records) else {
            engine.iter().for_each(EngineSession::abort);
            return;
        };
        // The engine gets the next turn after these events, since no other begins before the record is free.
        if let Some(engine) = &engine {
            engine.client.begin_event(engine.id, SessionEvent::EndTurn, |_| ());
            let wait =
                result.as_ref().filter(|_| !record.signalled).and_then(|result| self.wait_after(result));
            if let Some(wait) = wait {
                engine.client.begin_signal(engine.id, wait, |_| ());
            }
        }
        if let Some(TurnResult { usage, .. }) = result {
            record.usage.prompt += usage.prompt;
            record.usage.completion += usage.completion;
            record.usage.cached += usage.cached;
        }
        record.turn = None;
        record.used = Instant::now();
        record.bell.ring();
        if self.using.is_last {
            records.remove(&self.key);
        } else if !self.table.bounds.keeps {
            record.engine.take().iter().for_each(EngineSession::abort);
        }
    }

    /// What the session waits for next: as its client said, or else by the answer's calls.
    fn wait_after(&self, result: &TurnResult) -> Option<Signal> {
        let expected =
            self.using.expected_wait.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let calls = result.finish == FinishReason::ToolCalls;
        let tool = result.tool.as_ref().map(|tool| tool.chars().take(LONGEST_TOOL / 4).collect());
        let inferred = Signal::IoWait { tool, estimated_resume_ms: expected };
        self.using.signal.clone().or((calls || expected.is_some()).then_some(inferred))
    }
}
