//! The book against a shadow of it that holds contents: no page is lost, or written while others read it, and what a
//! table's pages hold is what its session wrote.

use djinn_pages::{BlockTable, PageCopies, PageName, Pages, Residency};
use proptest::prelude::*;

const DEVICE: u32 = 16;
const HOST: u32 = 9;
const PAGE: u64 = 4;
const LONGEST: usize = 24;

/// A session: its tokens, and its table.
#[derive(Clone, Debug, Default)]
struct Session {
    tokens: Vec<u32>,
    salt: u8,
    table: BlockTable,
    way: Option<PageCopies>,
}

/// What pages hold, token by token; a token's content stands for all tokens up to it.
struct Shadow {
    pages: Pages,
    device: Vec<Vec<u64>>,
    host: Vec<Vec<u64>>,
    sessions: Vec<Session>,
    reached: Reached,
}

#[derive(Debug, Default)]
struct Reached {
    found: u32,
    copied_on_write: u32,
    kept: u32,
    returned: u32,
    failed: u32,
}

fn content(salt: u8, tokens: &[u32]) -> u64 {
    let mix = |a: u64, t: &u32| (a ^ (u64::from(*t) + 1)).wrapping_mul(0x100_0000_01B3).rotate_left(23);
    tokens.iter().fold(u64::from(salt) + 0xCBF2_9CE4, mix)
}

fn pages_of(tokens: usize) -> u32 {
    (tokens as u64).div_ceil(PAGE) as u32
}

impl Session {
    fn names(&self) -> Vec<PageName> {
        let mut names = Vec::new();
        PageName::extend(&mut names, &[self.salt], &self.tokens, PAGE as u32);
        names
    }
}

impl Shadow {
    fn new() -> Self {
        let empty = |pages: u32| vec![Vec::new(); pages as usize];
        let (pages, reached) = (Pages::new(DEVICE, HOST), Reached::default());
        Shadow { pages, device: empty(DEVICE), host: empty(HOST), sessions: Vec::new(), reached }
    }

    fn happen(&mut self, kind: u64, a: u64, b: u64) {
        let len = self.sessions.len().max(1);
        let at = (a % len as u64) as usize;
        let residency = self.sessions.get(at).map(|session| session.table.residency());
        match (kind % 12, residency) {
            (0 | 1, _) => self.open(a, b),
            (2..=4, Some(Residency::Device | Residency::Gone)) => self.grow(at, 1 + b % 6, b >> 8),
            (5, Some(Residency::Device)) => {
                let (tokens, salt) = (self.sessions[at].tokens.clone(), self.sessions[at].salt);
                let table = self.pages.fork(&self.sessions[at].table, pages_of(tokens.len()));
                self.sessions.push(Session { tokens, salt, table, way: None });
            }
            (6, Some(Residency::Device | Residency::Gone | Residency::Host)) => {
                let session = &mut self.sessions[at];
                session.tokens.truncate((b % 24) as usize);
                self.pages.truncate(&mut session.table, pages_of(session.tokens.len()));
            }
            (7, Some(Residency::Device | Residency::Gone | Residency::Host)) => {
                let mut gone = self.sessions.swap_remove(at);
                self.pages.release(&mut gone.table);
            }
            (8, Some(Residency::Device)) => self.swap_out(at),
            (9, Some(Residency::Host)) => self.swap_in(at),
            (10, Some(Residency::Leaving | Residency::Arriving)) => self.end(at, !b.is_multiple_of(5)),
            (11, Some(Residency::Device)) => {
                let names = self.sessions[at].names();
                self.pages.publish(&self.sessions[at].table, &names);
            }
            _ => {}
        }
        self.check();
    }

    fn open(&mut self, a: u64, b: u64) {
        let tokens: Vec<u32> = (0..a % 13).map(|i| (b >> i) as u32 & 1).collect();
        let mut session = Session { tokens, salt: (b >> 20) as u8 % 2, ..Session::default() };
        let found = self.pages.find(&session.names());
        session.tokens.truncate(found.len() * PAGE as usize);
        self.reached.found += found.len() as u32;
        session.table = self.pages.attach(&found);
        self.sessions.push(session);
    }

    fn grow(&mut self, at: usize, count: u64, bits: u64) {
        let session = &mut self.sessions[at];
        let before = session.tokens.len();
        let tokens = before + count as usize;
        let last = before as u64 / PAGE;
        let shared = !(before as u64).is_multiple_of(PAGE) && self.pages.is_shared(&session.table, last);
        let more = pages_of(tokens).saturating_sub(session.table.device().len() as u32);
        if tokens > LONGEST || more + u32::from(shared) > self.pages.device_free() {
            return;
        }
        let free = self.pages.device_free();
        let fresh = self.pages.grow(&mut session.table, pages_of(tokens));
        assert_eq!(fresh.len() as u32, more);
        fresh.iter().for_each(|&page| self.device[page as usize] = Vec::new());
        if let Some(copy) = self.pages.write(&mut session.table, last) {
            assert!(shared || (before as u64).is_multiple_of(PAGE), "page {} is its own", copy.from);
            self.device[copy.to as usize] = self.device[copy.from as usize].clone();
            self.reached.copied_on_write += 1;
        }
        assert_eq!(self.pages.device_free(), free - more - u32::from(shared));
        for i in 0..count {
            session.tokens.push((bits >> i) as u32 & 1);
            let position = before as u64 + i;
            let page = session.table.device()[(position / PAGE) as usize] as usize;
            self.device[page].truncate((position % PAGE) as usize);
            self.device[page].push(content(session.salt, &session.tokens));
        }
    }

    fn swap_out(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let pages = pages_of(session.tokens.len());
        let (need, free) = (self.pages.host_need(&session.table, pages), self.pages.host_free());
        if pages == 0 || need > free {
            return;
        }
        let way = self.pages.swap_out(&mut session.table, pages);
        assert_eq!(self.pages.host_free(), free - need);
        assert_eq!((way.copies.len() + way.kept.len()) as u32, pages);
        self.reached.kept += way.kept.len() as u32;
        session.way = Some(way);
    }

    fn swap_in(&mut self, at: usize) {
        let session = &mut self.sessions[at];
        let returned = self.pages.returned(&session.table);
        let idle = returned.iter().filter(|&&page| self.pages.references(page) == 0).count();
        let need = session.table.host().len() - returned.len() + idle;
        let free = self.pages.device_free();
        if need > free as usize {
            return;
        }
        let pages = session.table.host().len() as u32;
        let way = self.pages.swap_in(&mut session.table, pages);
        assert_eq!(self.pages.device_free(), free - need as u32);
        self.reached.returned += way.kept.len() as u32;
        way.copies.iter().for_each(|pair| self.device[pair.device as usize] = Vec::new());
        session.way = Some(way);
    }

    /// The copies of a way run just before it ends: as late as they may.
    fn end(&mut self, at: usize, ok: bool) {
        let session = &mut self.sessions[at];
        let way = session.way.take().expect("it is on its way");
        let out = session.table.residency() == Residency::Leaving;
        for pair in way.copies.iter().filter(|_| ok) {
            let (device, host) = (&mut self.device[pair.device as usize], &mut self.host[pair.host as usize]);
            if out { host.clone_from(device) } else { device.clone_from(host) }
        }
        for &page in way.emptied.iter().filter(|_| ok) {
            self.device[page as usize] = Vec::new();
        }
        self.pages.end_copy(&mut session.table, ok);
        if session.table.residency() == Residency::Gone {
            session.tokens.clear();
        }
        self.reached.failed += u32::from(!ok);
    }

    /// Every session's pages hold what it wrote, at whichever end it can be used.
    fn check(&self) {
        self.pages.audit(self.sessions.iter().map(|session| &session.table));
        for session in &self.sessions {
            let (held, pages) = match session.table.residency() {
                Residency::Device | Residency::Leaving => (&self.device, session.table.device()),
                Residency::Host => (&self.host, session.table.host()),
                Residency::Gone | Residency::Arriving => continue,
            };
            for position in 0..session.tokens.len() {
                let page = pages[position / PAGE as usize] as usize;
                let found = held[page].get(position % PAGE as usize);
                let expected = content(session.salt, &session.tokens[..=position]);
                assert_eq!(found, Some(&expected), "token {position} in page {page} of {session:?}");
            }
        }
    }

    /// Gives everything back.
    fn end_all(&mut self) {
        for at in 0..self.sessions.len() {
            if self.sessions[at].way.is_some() {
                self.end(at, true);
            }
            self.pages.release(&mut self.sessions[at].table);
        }
        self.sessions.clear();
        self.check();
        assert_eq!((self.pages.device_free(), self.pages.host_free()), (DEVICE, HOST));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn pages_hold_what_their_sessions_wrote(
        events in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..300),
    ) {
        let mut shadow = Shadow::new();
        events.iter().for_each(|&(kind, a, b)| shadow.happen(kind, a, b));
        shadow.end_all();
    }
}

/// The random lives reach what they are to show.
#[test]
fn a_long_life_meets_every_case() {
    let mut shadow = Shadow::new();
    let mut state = 1_u64;
    let mut draw = || {
        state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        state ^ (state >> 29)
    };
    for _ in 0..60_000 {
        let (kind, a, b) = (draw() >> 7, draw() >> 9, draw());
        shadow.happen(kind, a, b);
        if shadow.sessions.len() > 12 {
            shadow.happen(7, a, b);
        }
    }
    let Reached { found, copied_on_write, kept, returned, failed } = shadow.reached;
    let least = [found, copied_on_write, kept, returned, failed].into_iter().min();
    assert!(least > Some(50), "{:?}", shadow.reached);
    shadow.end_all();
}

fn table(pages: &mut Pages, count: u32) -> BlockTable {
    let mut table = BlockTable::default();
    pages.grow(&mut table, count);
    table
}

fn names(salt: &[u8], tokens: &[u32]) -> Vec<PageName> {
    let mut names = Vec::new();
    PageName::extend(&mut names, salt, tokens, 2);
    names
}

#[test]
fn the_longest_run_of_full_pages_is_found() {
    let mut pages = Pages::new(8, 0);
    let first = table(&mut pages, 3);
    pages.publish(&first, &names(b"a", &[1, 2, 3, 4, 5]));
    let found = |salt, tokens| pages.find(&names(salt, tokens)).len();
    assert_eq!(pages.find(&names(b"a", &[1, 2, 3, 4, 5, 6])), first.device()[..2], "two full pages");
    assert_eq!((found(b"a", &[1, 2, 9, 4]), found(b"a", &[1])), (1, 0));
    assert_eq!(found(b"a", &[3, 4]), 0, "equal tokens elsewhere are another content");
    assert_eq!((found(b"b", &[1, 2, 3, 4]), found(b"", &[1, 2, 3, 4])), (0, 0), "another salt, or none");
    // Names that are known are not computed again, and stay what they are.
    let mut grown = names(b"a", &[1, 2]);
    PageName::extend(&mut grown, b"a", &[1, 2, 3, 4], 2);
    assert_eq!(grown, names(b"a", &[1, 2, 3, 4]));
}

#[test]
fn cached_pages_count_as_free_and_the_oldest_go_first() {
    let mut pages = Pages::new(4, 0);
    let (mut old, mut new) = (table(&mut pages, 2), BlockTable::default());
    pages.publish(&old, &names(b"a", &[1, 2, 3, 4]));
    pages.release(&mut old);
    pages.grow(&mut new, 1);
    pages.publish(&new, &names(b"a", &[5, 6]));
    pages.release(&mut new);
    assert_eq!((pages.device_free(), pages.cached()), (4, 3));
    // One page is empty; the second is the last one of the table that was let go first.
    let mut taker = table(&mut pages, 2);
    assert_eq!(pages.cached(), 2);
    let found = pages.find(&names(b"a", &[1, 2, 3, 4]));
    let mut again = pages.attach(&found);
    assert_eq!((found.len(), pages.cached(), pages.device_free()), (1, 1, 1));
    pages.release(&mut again);
    // Now the other one is the oldest.
    pages.grow(&mut taker, 3);
    assert!(pages.find(&names(b"a", &[5, 6])).is_empty());
    assert_eq!(pages.find(&names(b"a", &[1, 2])).len(), 1);
}

#[test]
fn a_page_that_is_written_again_is_forgotten_or_copied() {
    let mut pages = Pages::new(6, 0);
    let content = names(b"a", &[1, 2, 3, 4]);
    let mut alone = table(&mut pages, 2);
    pages.publish(&alone, &content);
    assert_eq!(pages.write(&mut alone, 1), None, "no other table reads it");
    assert_eq!(pages.find(&content).len(), 1, "but it is not found any more");
    pages.publish(&alone, &content);
    let second = pages.attach(&pages.find(&content));
    let copy = pages.write(&mut alone, 1).expect("the second table reads it");
    assert_eq!((copy.from, copy.to), (second.device()[1], alone.device()[1]));
    assert_eq!(pages.find(&content), second.device(), "the content that was published is still there");
}

#[test]
fn a_table_that_is_emptied_keeps_the_pages_that_are_its_own() {
    let mut pages = Pages::new(6, 0);
    let content = names(b"a", &[1, 2, 3, 4, 5, 6, 7, 8]);
    let mut emptied = table(&mut pages, 4);
    pages.publish(&emptied, &content);
    let second = pages.fork(&emptied, 2);
    let own = emptied.device()[2..].to_vec();
    pages.empty_after(&mut emptied, 1);
    assert_eq!(
        emptied.device(),
        [&second.device()[..1], &own].concat(),
        "the second page is another table's"
    );
    assert_eq!((pages.device_free(), pages.find(&content).len()), (2, 2), "its own are found no more");
    pages.audit([&emptied, &second]);
}

#[test]
fn what_others_hold_is_copied_once_and_comes_back_once() {
    let mut pages = Pages::new(8, 8);
    let mut first = table(&mut pages, 4);
    let mut second = pages.fork(&first, 3);
    pages.grow(&mut second, 4);
    assert_eq!(pages.device_free(), 3);
    let way = pages.swap_out(&mut first, 4);
    assert_eq!((way.copies.len(), way.emptied.len(), pages.device_free()), (4, 1, 3));
    pages.end_copy(&mut first, true);
    assert_eq!((pages.device_free(), pages.host_free()), (4, 4));
    // Three pages of the second one have a copy on the host already.
    assert_eq!(
        (pages.host_need(&second, 4), pages.host_lacks(&second, 4).next()),
        (1, Some(second.device()[3]))
    );
    assert_eq!(pages.copied(&second).map(|host| pages.host_references(host)).collect::<Vec<_>>(), [1; 3]);
    let way = pages.swap_out(&mut second, 4);
    assert_eq!((way.copies.len(), way.kept.len()), (1, 3));
    pages.end_copy(&mut second, true);
    assert_eq!((pages.device_free(), pages.host_free()), (8, 3));
    assert_eq!(pages.swap_in(&mut second, 5).copies.len(), 4);
    pages.end_copy(&mut second, true);
    assert_eq!((second.device().len(), pages.host_free()), (5, 4), "the first one's pages stay");
    assert_eq!(pages.returned(&first).len(), 3);
    assert_eq!(pages.swap_in(&mut first, 4).copies.len(), 1);
    pages.end_copy(&mut first, false);
    assert_eq!(first.residency(), Residency::Gone);
    pages.release(&mut second);
    pages.audit([&first, &second]);
    assert_eq!((pages.device_free(), pages.host_free()), (8, 8));
}

#[test]
fn copies_without_a_reader_make_room() {
    let mut pages = Pages::new(8, 6);
    let mut first = table(&mut pages, 4);
    for _ in 0..2 {
        pages.swap_out(&mut first, 4);
        pages.end_copy(&mut first, true);
        pages.swap_in(&mut first, 4);
        pages.end_copy(&mut first, true);
    }
    assert_eq!((pages.host_free(), pages.host_need(&first, 4)), (6, 4));
    // Four of six pages of the host hold copies; the third page that is taken is the oldest of them.
    let mut second = table(&mut pages, 3);
    pages.swap_out(&mut second, 3);
    assert_eq!(pages.host_free(), 3);
    pages.audit([&first, &second]);
    pages.end_copy(&mut second, true);
    pages.release(&mut second);
    assert_eq!((pages.swap_out(&mut first, 4).kept.len(), pages.host_free()), (3, 2));
    // A page that is written, or given back, has no copy.
    pages.end_copy(&mut first, false);
    pages.write(&mut first, 2);
    assert_eq!(pages.swap_out(&mut first, 4).kept.len(), 2);
    pages.end_copy(&mut first, false);
    pages.forget_copies();
    assert_eq!(pages.swap_out(&mut first, 4).kept.len(), 0);
}
