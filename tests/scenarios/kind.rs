//! What is on its way, by kind. The one place that looks into messages.

use rdma_transport::api::Meta;
use rdma_transport::protocol::message::{
    self, BufferMessage, Content, Fits, IMM_ACK, Message, PairMessage, RailMessage,
};
use rdma_transport::status::Status;

use super::common::net::Op;

/// What a scenario can hold back, let fail and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    // Messages.
    Request,
    Meta,
    ReRequest,
    Error,
    Content,
    ContentDone,
    GetDone,
    Cancel,
    CancelAck,
    Ping,
    Pong,
    Credit,
    Fragment,
    Goodbye,
    /// Nothing that a peer of good will sends.
    Garbage,
    // Other operations.
    Write,
    Msg,
    MsgOffer,
    MsgGrant,
    MsgAck,
    MsgFrag,
    MsgMatched,
    MsgWindow,
    MsgCarrier,
    Lost,
    MsgWithdraw,
    MsgWithdrawn,
    PairHello,
    PairBye,
    SlotOpen,
    SlotClose,
    SlotClosed,
    SlotDone,
    SlotChecked,
    BufferRequest,
    BufferResponse,
    BufferIdle,
    TensorWrite,
    BufferRecall,
    BufferFree,
    RailAdd,
    RailJoin,
    RailJoined,
    RailEnd,
    /// A write that says that the content is there.
    Imm,
    /// A write that returns credits.
    Ack,
    Read,
    /// The connection's end, behind what was posted.
    Fin,
    // Beside the wire: ends of operations, answers of the application and of copies, connections.
    Done,
    Alloc,
    Copy,
    Hash,
    Dial,
    Open,
}

/// A message, which may have a checksum behind it.
pub fn decode(bytes: &[u8]) -> Result<(Message<'_>, u16), Status> {
    let inner = &bytes[..bytes.len().saturating_sub(rdma_transport::engine::seal::TRAILER)];
    message::decode(bytes).or_else(|_| message::decode(inner))
}

/// What kind of message this is.
pub fn kind(bytes: &[u8]) -> Kind {
    match decode(bytes) {
        Ok((Message::Request(_), _)) => Kind::Request,
        Ok((Message::Meta(_), _)) => Kind::Meta,
        Ok((Message::ReRequest { .. }, _)) => Kind::ReRequest,
        Ok((Message::Error { .. }, _)) => Kind::Error,
        Ok((Message::Content(_), _)) => Kind::Content,
        Ok((Message::ContentDone { .. }, _)) => Kind::ContentDone,
        Ok((Message::GetDone { .. } | Message::TooLong { .. }, _)) => Kind::GetDone,
        Ok((Message::Cancel { .. }, _)) => Kind::Cancel,
        Ok((Message::CancelAck { .. }, _)) => Kind::CancelAck,
        Ok((Message::Ping, _)) => Kind::Ping,
        Ok((Message::Pong, _)) => Kind::Pong,
        Ok((Message::Credit { .. }, _)) => Kind::Credit,
        Ok((Message::Fragment { .. }, _)) => Kind::Fragment,
        Ok((Message::Goodbye { .. }, _)) => Kind::Goodbye,
        Ok((Message::Msg { .. }, _)) => Kind::Msg,
        Ok((Message::MsgOffer(_), _)) => Kind::MsgOffer,
        Ok((Message::MsgGrant { .. }, _)) => Kind::MsgGrant,
        Ok((Message::MsgAck { .. }, _)) => Kind::MsgAck,
        Ok((Message::MsgFrag { .. }, _)) => Kind::MsgFrag,
        Ok((Message::MsgMatched { .. }, _)) => Kind::MsgMatched,
        Ok((Message::MsgWindow { .. }, _)) => Kind::MsgWindow,
        Ok((Message::MsgCarrier { .. }, _)) => Kind::MsgCarrier,
        Ok((Message::Lost { .. }, _)) => Kind::Lost,
        Ok((Message::MsgWithdraw { .. }, _)) => Kind::MsgWithdraw,
        Ok((Message::MsgWithdrawn { .. }, _)) => Kind::MsgWithdrawn,
        Ok((Message::Rail(m), _)) => match m {
            RailMessage::Add { .. } => Kind::RailAdd,
            RailMessage::Join { .. } => Kind::RailJoin,
            RailMessage::Joined { .. } => Kind::RailJoined,
            RailMessage::End { .. } => Kind::RailEnd,
        },
        Ok((Message::Pair(m), _)) => match m {
            PairMessage::Hello { .. } => Kind::PairHello,
            PairMessage::Bye { .. } => Kind::PairBye,
            PairMessage::Open { .. } => Kind::SlotOpen,
            PairMessage::Close { .. } => Kind::SlotClose,
            PairMessage::Closed { .. } => Kind::SlotClosed,
            PairMessage::Done { .. } => Kind::SlotDone,
            PairMessage::Checked { .. } => Kind::SlotChecked,
        },
        Ok((Message::Buffer(m), _)) => match m {
            BufferMessage::Request { .. } => Kind::BufferRequest,
            BufferMessage::Response { .. } => Kind::BufferResponse,
            BufferMessage::Idle { .. } => Kind::BufferIdle,
            BufferMessage::Write { .. } => Kind::TensorWrite,
            BufferMessage::Recall { .. } => Kind::BufferRecall,
            BufferMessage::Free { .. } => Kind::BufferFree,
        },
        Err(_) => Kind::Garbage,
    }
}

/// What kind of operation this is.
pub fn of(op: &Op) -> Kind {
    match op {
        Op::Send(bytes) => kind(bytes),
        Op::Write { imm: None, .. } => Kind::Write,
        Op::Write { imm: Some(IMM_ACK), .. } => Kind::Ack,
        Op::Write { imm: Some(_), .. } => Kind::Imm,
        Op::Read { .. } => Kind::Read,
        Op::Fin => Kind::Fin,
    }
}

/// Credits that a message returns.
pub fn returned(bytes: &[u8]) -> u32 {
    decode(bytes).map_or(0, |(_, credits)| u32::from(credits))
}

/// Whether a write with this immediate returns credits.
pub fn is_ack(imm: u32) -> bool {
    imm == IMM_ACK
}

/// The index that a request gives itself.
pub fn index(bytes: &[u8]) -> u32 {
    match decode(bytes) {
        Ok((Message::Request(r), _)) => r.index,
        _ => panic!("it is no request"),
    }
}

/// Whether content brings its metadata along.
pub fn tells_metadata(bytes: &[u8]) -> bool {
    matches!(decode(bytes), Ok((Message::Content(Content { meta: Some(_), .. }), _)))
}

/// A message about a buffer.
pub fn about_a_buffer(m: BufferMessage) -> Vec<u8> {
    let mut out = Vec::new();
    message::encode(&Message::Buffer(m), &mut out);
    out
}

/// Of a TENSOR_WRITE the receiver's number of the buffer, of a BUFFER_IDLE the sender's.
pub fn number_of_buffer(bytes: &[u8]) -> u32 {
    match decode(bytes) {
        Ok((Message::Buffer(BufferMessage::Write { buffer, .. }), _)) => buffer,
        Ok((Message::Buffer(BufferMessage::Idle { number }), _)) => number,
        _ => panic!("it is about no buffer"),
    }
}

/// Where the buffer lies that this gives.
pub fn place_of_buffer(bytes: &[u8]) -> u64 {
    match decode(bytes) {
        Ok((Message::Buffer(BufferMessage::Response { given: Some((_, place, _)), .. }), _)) => {
            place.addr
        }
        _ => panic!("it gives no buffer"),
    }
}

/// A request without a destination.
pub fn request(index: u32, key: &[u8]) -> Vec<u8> {
    let (dst, any_meta, checksum, cached) = (None, false, false, None);
    let fits = Fits::Known;
    let r = message::Request { index, step: 1, dst, any_meta, checksum, fits, cached, key };
    let mut out = Vec::new();
    message::encode(&Message::Request(r), &mut out);
    out.extend_from_slice(key);
    out
}

/// Content with its metadata, for a request.
pub fn told_content(index: u32, content: &[u8]) -> Vec<u8> {
    let meta = Meta { dtype: 1, nbytes: content.len() as u64, ..Meta::default() };
    let m = Content { index, checksum: None, meta: Some(meta), content };
    let mut out = Vec::new();
    message::encode(&Message::Content(m), &mut out);
    out.extend_from_slice(content);
    out
}

/// GET_DONE that says of too little room.
pub fn too_long(response: u32) -> Vec<u8> {
    let mut out = Vec::new();
    message::encode(&Message::TooLong { response }, &mut out);
    out
}

/// Content without metadata, for a request.
pub fn bare_content(index: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    message::encode(
        &Message::Content(Content { index, checksum: None, meta: None, content }),
        &mut out,
    );
    out.extend_from_slice(content);
    out
}
