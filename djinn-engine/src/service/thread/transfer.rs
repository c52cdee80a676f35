//! Clients' requests to export and import sessions with their keys and values.

use super::{Client, Command};
use crate::service::transfer::TransferCommand;
use crate::{ExportedSession, IncomingSession, KvShape, Result, SessionId, SessionImage};
use std::ops::Range;

impl Client {
    /// Passes the format of the engine's pages to `answer`, without waiting.
    pub fn begin_shape(&self, answer: impl FnOnce(Result<KvShape>) + Send + 'static) {
        self.tell(Command::Transfer(TransferCommand::Shape(Box::new(answer))));
    }

    /// Requests the [image](SessionImage) of a session that is between turns or paused, without waiting, as
    /// [`begin_open`](Self::begin_open). Other sessions: [`Error::NotAtRest`](crate::Error::NotAtRest).
    pub fn begin_export(&self, id: SessionId, answer: impl FnOnce(Result<ExportedSession>) + Send + 'static) {
        self.tell(Command::Transfer(TransferCommand::Export(id, Box::new(answer))));
    }

    /// Reads pages of an exported session, by position, up to the number that it allows.
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

    /// Takes pages for an imported session. The scheduler makes room for them; after its time limit the session is
    /// refused like one that queues. [`Error::Image`](crate::Error::Image) if this engine cannot continue the session.
    /// Each accepted session must be [finished](Self::begin_finish).
    pub fn begin_import(
        &self,
        shape: KvShape,
        image: SessionImage,
        answer: impl FnOnce(Result<IncomingSession>) + Send + 'static,
    ) {
        self.tell(Command::Transfer(TransferCommand::Import(shape, Box::new(image), Box::new(answer))));
    }

    /// Writes whole pages of an imported session, from page `first` on.
    pub fn begin_write(
        &self,
        id: SessionId,
        first: u32,
        bytes: Vec<u8>,
        answer: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        self.tell(Command::Transfer(TransferCommand::Write(id, first, bytes, Box::new(answer))));
    }

    /// Ends an import. If it `keeps` the session, the session begins, between two turns or paused and without a
    /// listener. Otherwise its pages are free again.
    pub fn begin_finish(&self, id: SessionId, keeps: bool, answer: impl FnOnce(Result<()>) + Send + 'static) {
        self.tell(Command::Transfer(TransferCommand::Finish(id, keeps, Box::new(answer))));
    }
}
