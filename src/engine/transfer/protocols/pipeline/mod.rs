//! RDMA Pipeline (ob1's): a long message in three segments, so that memory is registered while other memory is moved.
//!
//! Sender: MSG_OFFER has the first segment (A). Receiver, which has met it and whose memory lies in one piece: puts that in
//! its place, asks by MSG_ACK for the last segment in messages (C, its ACK), and opens its memory fragment by fragment,
//! each told by a MSG_GRANT (C, its PUT), a few ahead of what has come. Sender: MSG_FRAGs (F), `send_pipeline_depth` of them
//! copied at a time; for each grant it registers as much of its own memory and WRITEs (G), the last with the request's index
//! as immediate, which is ob1's FIN. Receiver: an immediate ends the oldest fragment, which is closed, and another is opened
//! (its H and I); MSG_FRAGs are copied to their place (K). When all is there the receive has ended; when all was written and
//! posted, the send has.
//!
//! What cannot be registered at the receiver is asked for by MSG_ACK, too; at the sender it goes through a copy. Who gives up
//! in between does as with a put: CANCEL, CANCEL_ACK. The receiver has the last word: one whose memory lies in pieces, or
//! on a device, asks for legs or a put as if no pipeline had been offered. A connection with checksums offers none.
//!
//! A message in buffered mode goes this way out of its copy, which is registered: ob1's Buffered Pipeline.

mod receiver;
mod sender;

pub(in crate::engine) use receiver::Inflow;
pub(in crate::engine) use sender::Outflow;

/// Fragments that a receiver has open at a time.
const OPEN: usize = 2;
/// The same that a sender knows of before it takes the receiver for a hostile one.
const MOST: usize = 64;
