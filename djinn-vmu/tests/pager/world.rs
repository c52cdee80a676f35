//! Sequences with known content on a device, and random things that happen to them.

use djinn_device::{Buffer, DType, Error as DeviceError, Ops, Space, Stream};
use djinn_srg::KvShape;
use djinn_vmu::{Arriving, DataSegment, Error, KvLayout, NotMoved, Parked, Refusal, Sequence, SwapPace};
use std::collections::HashSet;

pub(crate) const PAGES: u32 = 16;
pub(crate) const HOST_PAGES: u32 = 9;
const SHAPE: KvShape = KvShape { layers: 2, kv_heads: 1, head_dim: 4 };
const PAGE_TOKENS: u32 = 4;
const WIDTH: u32 = 6;

pub(crate) fn layout(check: bool) -> KvLayout {
    KvLayout {
        shape: SHAPE,
        dtype: DType::F32,
        page_tokens: PAGE_TOKENS,
        pages: PAGES,
        sequences: 4,
        table_width: WIDTH,
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

/// Something, with its tokens and the salt that they were published under.
struct Told<T> {
    it: T,
    tokens: Vec<u32>,
    salt: u8,
}

impl<T> Told<T> {
    fn with<U>(self, it: U) -> Told<U> {
        Told { it, tokens: self.tokens, salt: self.salt }
    }
}

/// How often something was reached.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) parked: u64,
    pub(crate) resumed: u64,
    pub(crate) resumed_early: u64,
    pub(crate) found: u64,
    pub(crate) host_full: u64,
    pub(crate) pages_full: u64,
    pub(crate) refused: u64,
    pub(crate) shared: u64,
    pub(crate) overtaken: u64,
    /// Pages that left without a copy.
    pub(crate) kept: u64,
    pub(crate) paced: u64,
}

pub(crate) struct World<D: Ops> {
    pub(crate) device: D,
    pub(crate) data: DataSegment,
    pub(crate) compute: Stream,
    pub(crate) reached: Reached,
    /// As of a model's weights.
    weights: Stream,
    page: Buffer,
    live: Vec<Told<Sequence>>,
    parked: Vec<Told<Parked>>,
    coming: Vec<Told<Arriving>>,
}

/// Keys and values of a token follow from all tokens up to it.
fn byte(salt: u8, tokens: &[u32]) -> u8 {
    let mix = |a: u64, t: &u32| (a ^ (*t as u64 + 1)).wrapping_mul(0x100_0000_01B3).rotate_left(23);
    (tokens.iter().fold(salt as u64 + 0xCBF2_9CE4, mix) >> 17) as u8 & 0x7F
}

/// Where in a page the keys and values of a slot lie, `[layer][k|v][slot][dim]`.
fn places(slot: u64) -> impl Iterator<Item = u64> {
    (0..SHAPE.layers as u64 * 2).map(move |row| (row * PAGE_TOKENS as u64 + slot) * 16)
}

impl<D: Ops> World<D> {
    pub(crate) fn new(device: D, check: bool) -> Result<Self, Stop> {
        let mut data = DataSegment::new(&device, layout(check))?;
        let page_bytes = layout(check).page_bytes();
        data.set_pace(SwapPace { piece_bytes: 2 * page_bytes, least_bytes: page_bytes });
        let (compute, weights) = (device.stream()?, device.stream()?);
        let page = device.alloc(Space::Host, layout(check).page_bytes())?;
        let (live, parked, coming) = (vec![], vec![], vec![]);
        Ok(World { device, data, compute, reached: Reached::default(), weights, page, live, parked, coming })
    }

    /// One event, chosen by three numbers.
    pub(crate) fn happen(&mut self, kind: u64, a: u64, b: u64) -> Result<(), Stop> {
        let at = |len: usize| (a % len.max(1) as u64) as usize;
        match kind % 16 {
            0 | 1 => self.open(a, b),
            2..=5 if !self.live.is_empty() => self.grow(at(self.live.len()), 1 + b % 6, b),
            6 if !self.live.is_empty() => {
                let of = &self.live[at(self.live.len())];
                let fork = self.data.fork(&of.it);
                self.live.push(Told { it: fork, tokens: of.tokens.clone(), salt: of.salt });
                Ok(())
            }
            7 if !self.live.is_empty() => self.truncate(at(self.live.len()), b),
            8 if self.live.len() > 2 => self.release(at(self.live.len())),
            9 | 10 if !self.live.is_empty() => self.park(at(self.live.len())),
            11 if !self.parked.is_empty() => self.restore(at(self.parked.len())),
            12 if !self.coming.is_empty() => self.resume(at(self.coming.len())),
            13 => match (b % 8, self.parked.len(), self.coming.len()) {
                (0, 1.., _) => {
                    let out = self.parked.swap_remove(at(self.parked.len()));
                    self.data.discard(out.it);
                    Ok(())
                }
                (1, _, 1..) => {
                    let on_its_way = self.coming.swap_remove(at(self.coming.len()));
                    self.data.cancel(on_its_way.it);
                    Ok(())
                }
                (2, ..) => self.data.settle(&self.device).map(drop).map_err(Stop::from),
                (3 | 4, ..) => {
                    // As before a pass that streams a page, or nothing.
                    let bytes = (a % 3).min(1) * self.data.layout().page_bytes();
                    self.reached.paced += (bytes > 0) as u64;
                    Ok(self.data.share_link(&self.device, self.weights, bytes)?)
                }
                _ => self.data.poll(&self.device).map(drop).map_err(Stop::from),
            },
            14 if !self.live.is_empty() => {
                let of = &self.live[at(self.live.len())];
                self.data.publish(&[of.salt], &of.tokens, &of.it);
                Ok(())
            }
            15 if !self.live.is_empty() => self.verify(at(self.live.len())),
            _ => Ok(()),
        }
    }

    fn open(&mut self, a: u64, b: u64) -> Result<(), Stop> {
        let tokens: Vec<u32> = (0..a % 13).map(|i| (b >> i) as u32 & 1).collect();
        let salt = (b >> 20) as u8 % 2;
        let it = self.data.lookup(&[salt], &tokens);
        self.reached.found += (it.tokens() > 0) as u64;
        let tokens = tokens[..it.tokens() as usize].to_vec();
        self.live.push(Told { it, tokens, salt });
        Ok(())
    }

    fn grow(&mut self, i: usize, count: u64, bits: u64) -> Result<(), Stop> {
        let Told { it, tokens, salt } = &mut self.live[i];
        let (before, free) = (it.tokens(), self.data.free_pages());
        match self.data.grow(&self.device, self.compute, it, count) {
            Ok(Ok(())) => {}
            Ok(Err(full)) => {
                self.reached.pages_full += 1;
                let sound = full.free == free && it.tokens() == before;
                let needed = full.requested > full.free || before + count > (WIDTH * PAGE_TOKENS) as u64;
                return require(sound && needed, || format!("refused {count} tokens: {full:?}"));
            }
            Err(Error::Device(DeviceError::Resource { .. })) => {
                self.reached.refused += 1;
                return require(it.tokens() == before, || "half grown".to_owned());
            }
            Err(error) => return Err(error.into()),
        }
        for i in 0..count {
            tokens.push((bits >> (8 + i)) as u32 & 1);
            let position = before + i;
            let page = self.data.page(it.pages()[(position / PAGE_TOKENS as u64) as usize]);
            for place in places(position % PAGE_TOKENS as u64) {
                self.device.fill(self.compute, page.slice(place, 16), byte(*salt, tokens))?;
            }
        }
        Ok(())
    }

    fn truncate(&mut self, i: usize, b: u64) -> Result<(), Stop> {
        self.device.sync(self.compute)?;
        let told = &mut self.live[i];
        let keep = b % (told.it.tokens() + 1);
        self.data.truncate(&mut told.it, keep);
        told.tokens.truncate(keep as usize);
        Ok(())
    }

    fn release(&mut self, i: usize) -> Result<(), Stop> {
        self.device.sync(self.compute)?;
        let gone = self.live.swap_remove(i);
        self.data.release(gone.it);
        Ok(())
    }

    fn park(&mut self, i: usize) -> Result<(), Stop> {
        let mut told = self.live.swap_remove(i);
        let (sequence, kept) = (std::mem::take(&mut told.it), told);
        match self.data.park(&self.device, self.compute, sequence)? {
            Ok(parked) => {
                self.reached.parked += 1;
                self.reached.shared += (parked.shared_pages().count() > 0) as u64;
                let same = parked.tokens() == kept.tokens.len() as u64;
                self.parked.push(kept.with(parked));
                require(same, || "parked with other tokens".to_owned())
            }
            Err(NotMoved { sequence, why }) => {
                self.live.push(kept.with(sequence));
                match why {
                    Refusal::HostFull(full) => {
                        self.reached.host_full += 1;
                        require(full.requested > full.free, || format!("{full:?}"))
                    }
                    Refusal::Copy(DeviceError::Resource { .. }) => {
                        self.reached.refused += 1;
                        Ok(())
                    }
                    why => Err(Stop::Wrong(format!("{why:?}"))),
                }
            }
        }
    }

    fn restore(&mut self, i: usize) -> Result<(), Stop> {
        let Told { it, tokens, salt } = self.parked.swap_remove(i);
        self.reached.overtaken += (self.data.leaving_pages() > 0) as u64;
        match self.data.restore(&self.device, it)? {
            Ok(arriving) => self.coming.push(Told { it: arriving, tokens, salt }),
            Err(NotMoved { sequence, why }) => {
                self.parked.push(Told { it: sequence, tokens, salt });
                match why {
                    Refusal::PagesFull(full) if full.requested > full.free => self.reached.pages_full += 1,
                    Refusal::Copy(DeviceError::Resource { .. }) => self.reached.refused += 1,
                    why => return Err(Stop::Wrong(format!("{why:?}"))),
                }
            }
        }
        Ok(())
    }

    fn resume(&mut self, i: usize) -> Result<(), Stop> {
        let Told { it, tokens, salt } = self.coming.swap_remove(i);
        self.reached.resumed += 1;
        self.reached.resumed_early += !self.data.has_arrived(&it) as u64;
        let it = self.data.resume(&self.device, self.compute, it)?;
        self.live.push(Told { it, tokens, salt });
        Ok(())
    }

    /// Compares a sequence's keys and values with what they must be.
    fn verify(&mut self, i: usize) -> Result<(), Stop> {
        let Told { it, tokens, salt } = &self.live[i];
        require(it.tokens() == tokens.len() as u64, || "other tokens".to_owned())?;
        for (p, &page) in it.pages().iter().enumerate() {
            let source = self.data.page(page);
            let copied = self.device.copy(self.compute, source, self.page.span());
            if let Err(DeviceError::Resource { .. }) = copied {
                self.reached.refused += 1;
                self.device.copy(self.compute, source, self.page.span())?;
            }
            self.device.sync(self.compute)?;
            let first = p * PAGE_TOKENS as usize;
            for slot in 0..(tokens.len() - first).min(PAGE_TOKENS as usize) {
                let expected = byte(*salt, &tokens[..=first + slot]);
                let same = self.device.read_host(self.page.span(), |bytes| {
                    places(slot as u64).all(|at| bytes[at as usize..][..16].iter().all(|&b| b == expected))
                });
                require(same, || format!("token {} of page {page} is not {expected}", first + slot))?;
            }
        }
        Ok(())
    }

    /// No page is lost, and none is in two places.
    pub(crate) fn audit(&self) -> Result<(), Stop> {
        let live = self.live.iter().map(|told| &told.it);
        self.data.audit(
            live,
            self.parked.iter().map(|told| &told.it),
            self.coming.iter().map(|told| &told.it),
        );
        let parked = self.parked.iter().flat_map(|told| told.it.shared_pages());
        let used: HashSet<u32> = self
            .live
            .iter()
            .flat_map(|told| told.it.pages().to_vec())
            .chain(self.coming.iter().flat_map(|told| told.it.pages().to_vec()))
            .chain(parked)
            .collect();
        let sum = used.len() as u32 + self.data.free_pages() + self.data.leaving_pages();
        require(sum == PAGES, || format!("{sum} of {PAGES} pages: {} used", used.len()))?;
        let held: u32 = self.parked.iter().map(|told| told.it.host_pages()).sum();
        let sum = held + self.data.free_host_pages() + self.data.leaving_host_pages();
        require(sum == HOST_PAGES, || format!("{sum} of {HOST_PAGES} host pages: {held} held"))
    }

    /// Brings every sequence back and compares it. Where the shared pages of parked ones leave no room for any to
    /// come back, one is given up, as a caller would.
    pub(crate) fn come_home(&mut self) -> Result<(), Stop> {
        while let Some(i) = self.coming.len().checked_sub(1) {
            self.resume(i)?;
        }
        loop {
            while let Some(i) = self.live.len().checked_sub(1) {
                self.verify(i)?;
                self.release(i)?;
            }
            self.data.settle(&self.device)?;
            let room = self.data.free_pages();
            let Some(last) = self.parked.len().checked_sub(1) else { return Ok(()) };
            let Some(i) = self.parked.iter().position(|told| told.it.host_pages() <= room) else {
                let one = self.parked.swap_remove(last);
                require(one.it.shared_pages().count() > 0 || last > 0, || {
                    "an empty device is full".to_owned()
                })?;
                self.data.discard(one.it);
                continue;
            };
            self.restore(i)?;
            if let Some(i) = self.coming.len().checked_sub(1) {
                self.resume(i)?;
            }
        }
    }

    /// Gives everything back: every page is free afterwards, whatever happened before.
    pub(crate) fn end(mut self) -> Reached {
        // The device may have failed, which was told before.
        let _ = self.device.sync(self.compute);
        self.live.into_iter().for_each(|told| self.data.release(told.it));
        self.parked.into_iter().for_each(|told| self.data.discard(told.it));
        self.coming.into_iter().for_each(|told| self.data.cancel(told.it));
        let _ = self.data.settle(&self.device);
        self.data.audit(None, None, None);
        self.reached.kept = self.data.swap_stats().kept;
        assert_eq!((self.data.free_pages(), self.data.leaving_pages()), (PAGES, 0), "every page is back");
        let host = (self.data.free_host_pages(), self.data.leaving_host_pages());
        assert_eq!(host, (HOST_PAGES, 0), "every host page is back");
        self.data.free(&self.device);
        self.device.free(self.page);
        for space in [Space::Device, Space::Host] {
            assert_eq!(self.device.usage(space).in_use, 0, "every byte is back");
        }
        self.reached
    }
}

fn require(holds: bool, what: impl FnOnce() -> String) -> Result<(), Stop> {
    if holds { Ok(()) } else { Err(Stop::Wrong(what())) }
}
