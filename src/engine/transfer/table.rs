//! The protocols that there are: name, number, when each is used, where it comes from, what it costs.
//!
//! The only place of these words: settings, statistics, traces and the C header's numbers take them from here, and tests
//! hold `docs/protocol.md` and `docs/protocols.md` to them.

use crate::api::Protocol;

/// One protocol.
#[derive(Debug)]
pub struct Entry {
    /// Its number, that of `RDMA_PROTOCOL_*`.
    pub protocol: Protocol,
    /// In `RDMA_PROTOCOL`, traces and errors.
    pub name: &'static str,
    /// In statistics and metrics.
    pub counter: &'static str,
    /// `RDMA_PROTOCOL` and the options may force it.
    pub forced: bool,
    /// When it carries a transfer.
    pub when: &'static str,
    /// Whose design it is.
    pub source: &'static str,
    /// What either end does, in `protocols/`.
    pub file: &'static str,
    /// How often content is copied within the library; the provider's own copies come to that.
    pub copies: &'static str,
    /// Messages each way before the content is there, a message there and back counting one.
    pub round_trips: &'static str,
    /// Memory that is opened for it, and so registered where the provider has to.
    pub opens: &'static str,
}

/// All of them, each at its number.
pub static TABLE: [Entry; 7] = [
    Entry {
        protocol: Protocol::Auto,
        name: "auto",
        counter: "auto",
        forced: true,
        when: "none was chosen: the transfer ended before, or the choice is per transfer",
        source: "",
        file: "",
        copies: "",
        round_trips: "",
        opens: "",
    },
    Entry {
        protocol: Protocol::Local,
        name: "local",
        counter: "local",
        forced: false,
        when: "both ends are in this manager",
        source: "TensorFlow contrib/verbs",
        file: "local.rs",
        copies: "none into memory of the library, else one",
        round_trips: "none",
        opens: "nothing",
    },
    Entry {
        protocol: Protocol::Eager,
        name: "eager",
        counter: "eager",
        forced: true,
        when: "up to the eager limit: the content rides in the response",
        source: "Open MPI ob1",
        file: "eager.rs",
        copies: "five: to the call's stack, into and out of the message, aside, to its place",
        round_trips: "1; a message ½",
        opens: "nothing",
    },
    Entry {
        protocol: Protocol::DirectPut,
        name: "put",
        counter: "direct_put",
        forced: true,
        when: "the request exposed a destination that fits; or the receiver cannot read",
        source: "TensorFlow contrib/verbs, Open MPI ob1",
        file: "put.rs",
        copies: "none; one at an end that needs a proxy",
        round_trips: "1, or 2 where it is asked for again; a message 1½",
        opens: "both ends, for the transfer",
    },
    Entry {
        protocol: Protocol::DirectGet,
        name: "get",
        counter: "direct_get",
        forced: true,
        when: "the receiver learns the size with the answer, and can read",
        source: "Open MPI ob1",
        file: "get.rs",
        copies: "none; one at an end that needs a proxy",
        round_trips: "1 and the read; a message ½ and the read",
        opens: "both ends, for the transfer",
    },
    Entry {
        protocol: Protocol::Persistent,
        name: "persistent",
        counter: "persistent",
        forced: true,
        when: "forced: by a registered buffer of the tensor's name at either end",
        source: "TensorFlow contrib/verbs, first design",
        file: "persistent/",
        copies: "two: into the sender's buffer, out of the receiver's",
        round_trips: "1; 2 where the buffer is not there",
        opens: "a buffer of the name at both ends, once",
    },
    Entry {
        protocol: Protocol::Pipeline,
        name: "pipeline",
        counter: "pipeline",
        forced: true,
        when: "forced, or from `RDMA_MIN_RDMA_PIPELINE_SIZE` on: long messages, in three segments, registered while others are moved",
        source: "Open MPI ob1",
        file: "pipeline/",
        copies: "none of most; of the first and the last bytes as of eager",
        round_trips: "a message 1½",
        opens: "both ends, a fragment at a time",
    },
];

/// A way that has no number: each transfer that goes so is reported as one of [`TABLE`].
#[derive(Debug)]
pub struct Unnumbered {
    /// In the documents.
    pub name: &'static str,
    /// When it carries a transfer.
    pub when: &'static str,
    /// Whose design it is.
    pub source: &'static str,
    /// What it does, below `src/engine/`.
    pub file: &'static str,
    /// As of an [`Entry`].
    pub copies: &'static str,
    /// As of an [`Entry`].
    pub round_trips: &'static str,
    /// As of an [`Entry`].
    pub opens: &'static str,
    /// As what it is reported.
    pub reported: &'static [Protocol],
}

/// All of these.
pub static UNNUMBERED: [Unnumbered; 3] = [
    Unnumbered {
        name: "legs",
        when: "a message whose memory lies in pieces at an end: a leg at a time",
        source: "Open MPI ob1",
        file: "transfer/protocols/legs.rs",
        copies: "one at each end whose memory lies in pieces",
        round_trips: "½, and 1 a leg, or a read a leg",
        opens: "a buffer of a leg where memory lies in pieces; else the leg's part of it",
        reported: &[Protocol::DirectPut, Protocol::DirectGet],
    },
    Unnumbered {
        name: "buffered",
        when: "a message sent with `RDMA_MSG_BUFFERED`: out of a copy, and the send has ended with the call",
        source: "Open MPI ob1",
        file: "front/message/buffered.rs",
        copies: "one, unless it goes out at once; and those of the protocol that carries it",
        round_trips: "as that protocol",
        opens: "as that protocol; the copy is memory of the library",
        reported: &[
            Protocol::Eager,
            Protocol::DirectPut,
            Protocol::DirectGet,
            Protocol::Pipeline,
            Protocol::Local,
        ],
    },
    Unnumbered {
        name: "slot",
        when: "a buffer of a pair is sent: to a slot that the other end has open",
        source: "Gloo",
        file: "front/pair/",
        copies: "none; of a short one that the provider takes so, one",
        round_trips: "none: ½",
        opens: "both ends, as long as the buffers live",
        reported: &[Protocol::DirectPut],
    },
];

impl Protocol {
    /// Its row.
    pub fn entry(self) -> &'static Entry {
        &TABLE[self as usize]
    }

    /// The protocol of a number.
    pub fn of_number(number: u32) -> Option<Protocol> {
        TABLE.get(number as usize).map(|e| e.protocol)
    }
}

impl Entry {
    /// Its number's name in the C header.
    pub fn constant(&self) -> String {
        format!("RDMA_PROTOCOL_{}", self.counter.to_uppercase())
    }
}

/// The protocol of a number, if it may be forced; otherwise which may, in words, by number and what `name` says.
pub fn forced(number: u32, name: impl Fn(&Entry) -> String) -> Result<Protocol, String> {
    match TABLE.get(number as usize).filter(|e| e.forced) {
        Some(e) => Ok(e.protocol),
        None => {
            let all = TABLE.iter().filter(|e| e.forced);
            let all: Vec<_> = all.map(|e| format!("{} ({})", e.protocol as u32, name(e))).collect();
            Err(all.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_at_its_number() {
        for (i, e) in TABLE.iter().enumerate() {
            assert_eq!((e.protocol as usize, Protocol::of_number(i as u32)), (i, Some(e.protocol)));
        }
        assert_eq!(Protocol::of_number(TABLE.len() as u32), None);
    }

    #[test]
    fn local_is_not_forced() {
        for e in &TABLE {
            let found = forced(e.protocol as u32, |e| e.name.into());
            assert_eq!(found.is_ok(), e.protocol != Protocol::Local, "{}", e.name);
        }
        let allowed = forced(TABLE.len() as u32, Entry::constant);
        let Err(allowed) = allowed else { panic!("a number without a protocol is allowed") };
        let words = "0 (RDMA_PROTOCOL_AUTO), 2 (RDMA_PROTOCOL_EAGER), 3 (RDMA_PROTOCOL_DIRECT_PUT)";
        assert!(allowed.starts_with(words), "{allowed}");
    }

    #[test]
    fn the_header_has_each() {
        let header = include_str!("../../ffi/types/base.rs");
        for e in &TABLE {
            let line = format!("pub const {}: u32 = {};", e.constant(), e.protocol as u32);
            assert!(header.contains(&line), "src/ffi/types/base.rs lacks {line}");
        }
    }

    #[test]
    fn the_documents_have_each() {
        let wire = include_str!("../../../docs/protocol.md");
        let all = include_str!("../../../docs/protocols.md");
        for e in TABLE.iter().filter(|e| e.protocol != Protocol::Auto) {
            let row =
                format!("| {} | `{}` | {} | {} |", e.protocol as u32, e.name, e.when, e.source);
            assert!(wire.contains(&row), "docs/protocol.md lacks {row}");
            let (number, name) = (e.protocol as u32, e.name);
            let force = if e.forced { format!("`RDMA_PROTOCOL={name}`") } else { "not".into() };
            let file = format!("[{}](../src/engine/transfer/protocols/{})", e.file, e.file);
            let rows = [
                format!("| {number} | `{name}` | {} | {} | {file} |", e.source, e.when),
                format!("| `{name}` | {} | {} | {} | {force} |", e.copies, e.round_trips, e.opens),
            ];
            for row in rows {
                assert!(all.contains(&row), "docs/protocols.md lacks {row}");
            }
        }
        for e in &UNNUMBERED {
            let reported: Vec<_> =
                e.reported.iter().map(|p| format!("`{}`", p.entry().name)).collect();
            let file = format!("[{}](../src/engine/{})", e.file, e.file);
            let row = format!(
                "| `{}` | {} | {} | {} | {} | {} | {} | {file} |",
                e.name,
                e.source,
                e.when,
                e.copies,
                e.round_trips,
                e.opens,
                reported.join(", ")
            );
            assert!(all.contains(&row), "docs/protocols.md lacks {row}");
            let picture = format!("(protocols/{}.svg)", e.name);
            assert!(all.contains(&picture), "docs/protocols.md lacks {picture}");
        }
    }
}
