//! What the application sends beside the content of a tensor: bytes that nobody here reads.

use std::fmt;
use std::sync::Arc;

use crate::room;
use crate::status::Status;

/// At most [`MAX_USER`](crate::protocol::message::MAX_USER) bytes; as a rule none, which is one word. Those that are there
/// stay where they are, and are shared: a copy of a tensor's description takes no memory for them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct UserBytes(Option<Arc<Vec<u8>>>);

impl UserBytes {
    /// None.
    pub const NONE: UserBytes = UserBytes(None);

    /// A copy.
    pub fn copy(bytes: &[u8]) -> Result<UserBytes, Status> {
        match bytes {
            [] => Ok(UserBytes::NONE),
            some => Ok(UserBytes(Some(Arc::new(room::copy(some, "user bytes")?)))),
        }
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// They.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.0.as_ref().map_or(&[], |bytes| bytes)
    }

    /// Bytes that they take in a message.
    #[inline]
    pub fn room(&self) -> usize {
        self.0.as_ref().map_or(0, |bytes| 2 + bytes.len())
    }
}

impl fmt::Debug for UserBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} user bytes", self.bytes().len())
    }
}
