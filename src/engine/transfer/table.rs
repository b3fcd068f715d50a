//! The protocols that there are: name, number, when each is used, where it comes from.
//!
//! The only place of these words: settings, statistics, traces and the C header's numbers take them from here, and a
//! test holds `docs/protocol.md` to them.

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
}

/// All of them, each at its number.
pub static TABLE: [Entry; 6] = [
    Entry {
        protocol: Protocol::Auto,
        name: "auto",
        counter: "auto",
        forced: true,
        when: "none was chosen: the transfer ended before, or the choice is per transfer",
        source: "",
    },
    Entry {
        protocol: Protocol::Local,
        name: "local",
        counter: "local",
        forced: false,
        when: "both ends are in this manager",
        source: "TensorFlow contrib/verbs",
    },
    Entry {
        protocol: Protocol::Eager,
        name: "eager",
        counter: "eager",
        forced: true,
        when: "up to the eager limit: the content rides in the response",
        source: "Open MPI ob1",
    },
    Entry {
        protocol: Protocol::DirectPut,
        name: "put",
        counter: "direct_put",
        forced: true,
        when: "the request exposed a destination that fits; or the receiver cannot read",
        source: "TensorFlow contrib/verbs, Open MPI ob1",
    },
    Entry {
        protocol: Protocol::DirectGet,
        name: "get",
        counter: "direct_get",
        forced: true,
        when: "the receiver learns the size with the answer, and can read",
        source: "Open MPI ob1",
    },
    Entry {
        protocol: Protocol::Persistent,
        name: "persistent",
        counter: "persistent",
        forced: true,
        when: "forced: by a registered buffer of the tensor's name at either end",
        source: "TensorFlow contrib/verbs, first design",
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

/// Those that may be forced, in words.
pub fn forced() -> String {
    let all = TABLE.iter().filter(|e| e.forced);
    let all: Vec<_> = all.map(|e| format!("{} ({})", e.protocol as u32, e.name)).collect();
    all.join(", ")
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
    fn the_document_has_each() {
        let document = include_str!("../../../docs/protocol.md");
        for e in TABLE.iter().filter(|e| e.protocol != Protocol::Auto) {
            let row =
                format!("| {} | `{}` | {} | {} |", e.protocol as u32, e.name, e.when, e.source);
            assert!(document.contains(&row), "docs/protocol.md lacks {row}");
        }
    }
}
