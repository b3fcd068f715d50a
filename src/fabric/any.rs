//! An adapter of any provider.
//!
//! What every message passes through is called here without a table of functions where the provider is shm, for which a call is
//! much of what a message costs; the rest of [`Adapter`] by the table.

use std::ops::{Deref, DerefMut};

use super::shm::ShmAdapter;
use super::{Adapter, EpId, Event, Follows, HEAD_ROOM, One, PostError, SHORT_HEAD, View};

/// An opened adapter, of whichever provider.
pub enum AnyAdapter {
    /// Of shm.
    Shm(Box<ShmAdapter>),
    /// Of another.
    Other(Box<dyn Adapter>),
}

impl AnyAdapter {
    /// The same behind a table of functions.
    pub fn into_box(self) -> Box<dyn Adapter> {
        match self {
            AnyAdapter::Shm(shm) => shm,
            AnyAdapter::Other(other) => other,
        }
    }
}

impl Deref for AnyAdapter {
    type Target = dyn Adapter;
    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            AnyAdapter::Shm(shm) => &**shm,
            AnyAdapter::Other(other) => &**other,
        }
    }
}

impl DerefMut for AnyAdapter {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            AnyAdapter::Shm(shm) => &mut **shm,
            AnyAdapter::Other(other) => &mut **other,
        }
    }
}

/// Calls a function of whichever it is.
macro_rules! either {
    ($self:ident, $adapter:ident => $call:expr) => {
        match $self {
            AnyAdapter::Shm($adapter) => $call,
            AnyAdapter::Other($adapter) => $call,
        }
    };
}

impl AnyAdapter {
    /// [`Adapter::send_short`].
    #[inline]
    pub fn send_short(
        &mut self,
        ep: EpId,
        head: &[u8; SHORT_HEAD],
        content: &[u8],
    ) -> Result<(), PostError> {
        either!(self, a => a.send_short(ep, head, content))
    }

    /// [`Adapter::send_head`].
    #[inline]
    pub fn send_head(
        &mut self,
        ep: EpId,
        head: &[u8; HEAD_ROOM],
        len: usize,
        content: &[u8],
    ) -> Result<(), PostError> {
        either!(self, a => a.send_head(ep, head, len, content))
    }

    /// [`Adapter::flush_soon`].
    #[inline]
    pub fn flush_soon(&mut self, follows: Follows) -> bool {
        either!(self, a => a.flush_soon(follows))
    }

    /// [`Adapter::poll`].
    #[inline]
    pub fn poll(&mut self, events: &mut Vec<Event>) -> bool {
        either!(self, a => a.poll(events))
    }

    /// [`Adapter::poll_one`].
    #[inline]
    pub fn poll_one(&mut self) -> One {
        either!(self, a => a.poll_one())
    }

    /// [`Adapter::poll_next`].
    #[inline]
    pub fn poll_next(&mut self) -> Option<(EpId, View)> {
        either!(self, a => a.poll_next())
    }
}
