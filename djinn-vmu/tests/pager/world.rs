//! Sessions with known content on a device, and random things that happen to them.

use super::kv::Kv;
use djinn_device::{Buffer, DType, Error as DeviceError, Ops, Space, Stream};
use djinn_pages::{BlockTable, PageName, Residency};
use djinn_vmu::{Direction, Error, KvLayout, SwapFault, SwapPace, TextStore, Transfer};

pub(crate) const PAGES: u32 = 16;
pub(crate) const HOST_PAGES: u32 = 9;
const PAGE_TOKENS: u64 = 4;
const LONGEST: u64 = 24;

pub(crate) fn layout(check: bool) -> KvLayout {
    KvLayout {
        token_bytes: 64,
        dtype: DType::F32,
        page_tokens: PAGE_TOKENS as u32,
        pages: PAGES,
        sequences: 4,
        table_width: 6,
        host_pages: HOST_PAGES,
        check,
    }
}

/// Why a life of a world ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The device failed.
    Failed(DeviceError),
    /// Something that must not be.
    Wrong(String),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            Error::Device(error) => Stop::Failed(error),
            other => Stop::Wrong(other.to_string()),
        }
    }
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Self {
        Stop::Failed(error)
    }
}

/// SplitMix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// A session: its tokens, and the salt that they are named under.
#[derive(Default)]
struct Session {
    ticket: u64,
    table: BlockTable,
    tokens: Vec<u32>,
    salt: u8,
    /// It goes once its way has ended.
    ending: bool,
}

/// How often something was reached.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) left: u64,
    pub(crate) came_back: u64,
    pub(crate) found: u64,
    pub(crate) host_full: u64,
    pub(crate) pages_full: u64,
    pub(crate) refused: u64,
    /// Sessions that left while others held some of their pages.
    pub(crate) shared: u64,
    /// Pages that left without a copy, and that were there already.
    pub(crate) kept: u64,
    pub(crate) returned: u64,
    pub(crate) duplicated: u64,
    pub(crate) abandoned: u64,
    pub(crate) paced: u64,
}

pub(crate) struct World<'a, D: Ops> {
    kv: Kv<'a, D>,
    pub(crate) reached: Reached,
    /// As of a model's weights.
    weights: Stream,
    page: Buffer,
    sessions: Vec<Session>,
    tickets: u64,
}

/// Keys and values of a token follow from all tokens up to it.
fn byte(salt: u8, tokens: &[u32]) -> u8 {
    let mix = |a: u64, t: &u32| (a ^ (*t as u64 + 1)).wrapping_mul(0x100_0000_01B3).rotate_left(23);
    (tokens.iter().fold(salt as u64 + 0xCBF2_9CE4, mix) >> 17) as u8 & 0x7F
}

/// Where in a page the keys and values of a slot lie, `[layer][k|v][slot][dim]`.
fn places(slot: u64) -> impl Iterator<Item = u64> {
    (0..4).map(move |row| (row * PAGE_TOKENS + slot) * 16)
}

fn pages_of(tokens: u64) -> u32 {
    tokens.div_ceil(PAGE_TOKENS) as u32
}

impl Session {
    fn names(&self) -> Vec<PageName> {
        let mut names = Vec::new();
        PageName::extend(&mut names, &[self.salt], &self.tokens, PAGE_TOKENS as u32);
        names
    }
}

impl<'a, D: Ops> World<'a, D> {
    pub(crate) fn new(device: &'a D, check: bool) -> Result<Self, Stop> {
        let mut kv = Kv::new(device, layout(check))?;
        let page_bytes = layout(check).page_bytes();
        kv.data.set_pace(SwapPace { piece_bytes: 2 * page_bytes, least_bytes: page_bytes });
        let (weights, page) = (device.stream()?, device.alloc(Space::Host, page_bytes)?);
        Ok(World { kv, reached: Reached::default(), weights, page, sessions: vec![], tickets: 0 })
    }

    /// One event, chosen by three numbers.
    pub(crate) fn happen(&mut self, kind: u64, a: u64, b: u64) -> Result<(), Stop> {
        let at = (a % self.sessions.len().max(1) as u64) as usize;
        let residency = self.sessions.get(at).map(|session| session.table.residency());
        match (kind % 16, residency) {
            (0 | 1, _) if self.sessions.len() < 12 => self.open(a, b),
            (2..=5, Some(Residency::Device | Residency::Gone)) => self.grow(at, 1 + b % 6, b),
            (6, Some(Residency::Device)) => {
                let Session { tokens, salt, table, .. } = &self.sessions[at];
                let (tokens, salt) = (tokens.clone(), *salt);
                let table = self.kv.book.fork(table, pages_of(tokens.len() as u64));
                self.add(table, tokens, salt);
                Ok(())
            }
            (7, Some(Residency::Device | Residency::Gone)) => self.truncate(at, b),
            (8, Some(Residency::Device | Residency::Gone | Residency::Host)) => self.release(at),
            (8, Some(_)) => {
                self.reached.abandoned += !self.sessions[at].ending as u64;
                self.sessions[at].ending = true;
                Ok(())
            }
            (9 | 10, Some(Residency::Device)) => self.swap(at, Direction::Out),
            (11 | 12, Some(Residency::Host)) => self.swap(at, Direction::In),
            (13, _) if b.is_multiple_of(3) => {
                // As before a pass that streams a page, or nothing.
                let bytes = (a % 3).min(1) * self.kv.data.layout().page_bytes();
                self.reached.paced += (bytes > 0) as u64;
                Ok(self.kv.data.share_link(self.kv.device, self.weights, bytes)?)
            }
            (13, _) if b % 3 == 1 => {
                let ended = self.kv.data.settle(self.kv.device)?;
                self.end(&ended)
            }
            (13, _) => {
                let ended = self.kv.data.poll(self.kv.device)?;
                self.end(&ended)
            }
            (14, Some(Residency::Device)) => {
                let names = self.sessions[at].names();
                self.kv.book.publish(&self.sessions[at].table, &names);
                Ok(())
            }
            (15, Some(Residency::Device)) => self.verify(at),
            _ => Ok(()),
        }
    }

    fn add(&mut self, table: BlockTable, tokens: Vec<u32>, salt: u8) {
        self.sessions.push(Session { ticket: self.tickets, table, tokens, salt, ending: false });
        self.tickets += 1;
    }

    fn open(&mut self, a: u64, b: u64) -> Result<(), Stop> {
        let tokens: Vec<u32> = (0..a % 13).map(|i| (b >> i) as u32 & 1).collect();
        let mut session = Session { tokens, salt: (b >> 20) as u8 % 2, ..Session::default() };
        let found = self.kv.book.find(&session.names());
        self.reached.found += !found.is_empty() as u64;
        session.tokens.truncate(found.len() * PAGE_TOKENS as usize);
        let table = self.kv.book.attach(&found);
        self.add(table, session.tokens, session.salt);
        Ok(())
    }

    fn grow(&mut self, at: usize, count: u64, bits: u64) -> Result<(), Stop> {
        let Kv { device, compute, book, data, .. } = &mut self.kv;
        let Session { table, tokens, salt, .. } = &mut self.sessions[at];
        let before = tokens.len() as u64;
        let (end, last) = (before + count, before / PAGE_TOKENS);
        let partial = !before.is_multiple_of(PAGE_TOKENS);
        let own = (partial && book.is_shared(table, last)) as u32;
        let more = pages_of(end).saturating_sub(table.device().len() as u32) + own;
        if end > LONGEST || more > book.device_free() {
            self.reached.pages_full += 1;
            return Ok(());
        }
        let fresh = book.grow(table, pages_of(end));
        let copy = if partial { book.write(table, last) } else { None };
        self.reached.duplicated += copy.is_some() as u64;
        match data.prepare(*device, *compute, &fresh, copy.as_slice()) {
            Err(Error::Device(DeviceError::Resource { .. })) => {
                // Its page holds nothing.
                self.reached.refused += 1;
                return self.release(at);
            }
            prepared => prepared?,
        }
        for i in 0..count {
            tokens.push((bits >> (8 + i)) as u32 & 1);
            let position = before + i;
            let page = data.page(table.device()[(position / PAGE_TOKENS) as usize]);
            for place in places(position % PAGE_TOKENS) {
                device.fill(*compute, page.slice(place, 16), byte(*salt, tokens))?;
            }
        }
        Ok(())
    }

    fn truncate(&mut self, at: usize, b: u64) -> Result<(), Stop> {
        self.kv.device.sync(self.kv.compute)?;
        let Session { table, tokens, .. } = &mut self.sessions[at];
        tokens.truncate((b % (tokens.len() as u64 + 1)) as usize);
        self.kv.book.truncate(table, pages_of(tokens.len() as u64));
        Ok(())
    }

    fn release(&mut self, at: usize) -> Result<(), Stop> {
        self.kv.device.sync(self.kv.compute)?;
        let mut gone = self.sessions.swap_remove(at);
        self.kv.book.release(&mut gone.table);
        Ok(())
    }

    fn swap(&mut self, at: usize, direction: Direction) -> Result<(), Stop> {
        let Session { ticket, table, .. } = &mut self.sessions[at];
        let held = |page: &&u32| self.kv.book.references(**page) > 1;
        let shared = table.device().iter().any(|page| held(&page));
        let returned = self.kv.book.returned(table).len() as u64;
        match (self.kv.swap(direction, *ticket, table)?, direction) {
            (true, Direction::Out) => {
                self.reached.left += 1;
                self.reached.shared += shared as u64;
            }
            (true, Direction::In) => {
                self.reached.came_back += 1;
                self.reached.returned += returned;
            }
            (false, Direction::Out) => self.reached.host_full += 1,
            (false, Direction::In) => self.reached.pages_full += 1,
        }
        Ok(())
    }

    fn end(&mut self, ended: &[Transfer]) -> Result<(), Stop> {
        for transfer in ended {
            let at = self.sessions.iter().position(|session| session.ticket == transfer.ticket);
            let at = at.expect("a session on its way is there");
            let session = &mut self.sessions[at];
            self.kv.book.end_copy(&mut session.table, transfer.fault.is_none());
            match transfer.fault {
                None => {}
                Some(SwapFault::Refused) => self.reached.refused += 1,
                Some(fault) => return Err(Stop::Wrong(format!("KV check: {fault:?}"))),
            }
            if session.ending {
                self.release(at)?;
            } else if session.table.residency() == Residency::Gone {
                session.tokens.clear();
            }
        }
        Ok(())
    }

    /// Compares a session's keys and values with what they must be.
    fn verify(&mut self, at: usize) -> Result<(), Stop> {
        let Session { table, tokens, salt, .. } = &self.sessions[at];
        let Kv { device, compute, data, .. } = &self.kv;
        for (p, &page) in table.device().iter().take(pages_of(tokens.len() as u64) as usize).enumerate() {
            let copied = device.copy(*compute, data.page(page), self.page.span());
            if let Err(DeviceError::Resource { .. }) = copied {
                self.reached.refused += 1;
                device.copy(*compute, data.page(page), self.page.span())?;
            }
            device.sync(*compute)?;
            let first = p * PAGE_TOKENS as usize;
            for slot in 0..(tokens.len() - first).min(PAGE_TOKENS as usize) {
                let expected = byte(*salt, &tokens[..=first + slot]);
                let same = device.read_host(self.page.span(), |bytes| {
                    places(slot as u64).all(|at| bytes[at as usize..][..16].iter().all(|&b| b == expected))
                });
                if !same {
                    let what = format!("token {} of page {page} is not {expected}", first + slot);
                    return Err(Stop::Wrong(what));
                }
            }
        }
        Ok(())
    }

    /// No page is lost, and none is in two places.
    pub(crate) fn audit(&self) {
        self.kv.book.audit(self.sessions.iter().map(|session| &session.table));
    }

    /// Brings every session back and compares it.
    pub(crate) fn come_home(&mut self) -> Result<(), Stop> {
        loop {
            let ended = self.kv.data.settle(self.kv.device)?;
            self.end(&ended)?;
            let at = |wanted: Residency| {
                self.sessions.iter().position(|session| session.table.residency() == wanted)
            };
            if let Some(at) = at(Residency::Device).or(at(Residency::Gone)) {
                self.verify(at)?;
                self.release(at)?;
            } else if let Some(at) = at(Residency::Host) {
                let full = self.reached.pages_full;
                self.swap(at, Direction::In)?;
                if self.reached.pages_full > full {
                    return Err(Stop::Wrong("an empty device is full".to_owned()));
                }
            } else if self.sessions.is_empty() {
                return Ok(());
            }
        }
    }

    /// Gives everything back: every page is free afterwards, whatever happened before.
    pub(crate) fn end_all(mut self) -> Reached {
        // The device may have failed, which was told before.
        let _ = self.kv.device.sync(self.kv.compute);
        let Kv { device, mut book, data, held, .. } = self.kv;
        self.sessions.iter_mut().for_each(|session| book.release(&mut session.table));
        book.audit([]);
        assert_eq!((book.device_free(), book.host_free()), (PAGES, HOST_PAGES), "every page is back");
        self.reached.kept = data.swap_stats().kept;
        held.free(device, &mut TextStore::new());
        device.free(self.page);
        for space in [Space::Device, Space::Host] {
            assert_eq!(device.usage(space).in_use, 0, "every byte is back");
        }
        self.reached
    }
}
