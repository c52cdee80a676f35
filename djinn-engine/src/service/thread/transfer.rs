//! Clients that read sessions with their keys and values, and bring some.

use super::{Client, Command};
use crate::service::transfer::TransferCommand;
use crate::{ExportedSession, IncomingSession, KvShape, Result, SessionId, SessionImage};
use std::ops::Range;

impl Client {
    /// Asks how the engine keeps keys and values, without waiting.
    pub fn begin_shape(&self, answer: impl FnOnce(Result<KvShape>) + Send + 'static) {
        self.tell(Command::Transfer(TransferCommand::Shape(Box::new(answer))));
    }

    /// Asks for a session's [image](SessionImage), without waiting, as [`begin_open`](Self::begin_open) does. The session is
    /// between turns or paused; else [`Error::NotAtRest`](crate::Error::NotAtRest).
    pub fn begin_export(&self, id: SessionId, answer: impl FnOnce(Result<ExportedSession>) + Send + 'static) {
        self.tell(Command::Transfer(TransferCommand::Export(id, Box::new(answer))));
    }

    /// Reads pages of an exported session, in order of position, at most as many as it says.
    /// [`Error::ImageLost`](crate::Error::ImageLost) if they were given up or changed.
    pub fn begin_read(
        &self,
        session: &ExportedSession,
        pages: Range<u32>,
        answer: impl FnOnce(Result<Vec<u8>>) + Send + 'static,
    ) {
        let session = Box::new(session.clone());
        self.tell(Command::Transfer(TransferCommand::Read(session, pages, Box::new(answer))));
    }

    /// Takes pages for a session of another engine. The scheduler makes room for them; without it in time, the session is
    /// refused as one that queues. [`Error::Image`](crate::Error::Image) for what this engine cannot go on with. Each that is taken in is to be
    /// [finished](Self::begin_finish).
    pub fn begin_import(
        &self,
        shape: KvShape,
        image: SessionImage,
        answer: impl FnOnce(Result<IncomingSession>) + Send + 'static,
    ) {
        self.tell(Command::Transfer(TransferCommand::Import(shape, Box::new(image), Box::new(answer))));
    }

    /// Writes whole pages of a session to come, from page `first` on.
    pub fn begin_write(
        &self,
        id: SessionId,
        first: u32,
        bytes: Vec<u8>,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.tell(Command::Transfer(TransferCommand::Write(id, first, bytes, Box::new(answer))));
    }

    /// A session to come is whole and begins, between two turns and without a listener; or it does not come, and its
    /// pages are given back.
    pub fn begin_finish(&self, id: SessionId, keeps: bool, answer: impl FnOnce(Result<()>) + Send + 'static) {
        self.tell(Command::Transfer(TransferCommand::Finish(id, keeps, Box::new(answer))));
    }
}
