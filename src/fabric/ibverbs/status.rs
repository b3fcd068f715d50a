//! Work-completion statuses as statuses of this library, with both ends' names and a hint.

use rdma_sys::ibv_wc_status as wc;

use crate::status::{Code, Reason, Status};

/// What a completion status means: name, code, reason, hint.
type Meaning = (&'static str, Code, Reason, &'static str);

/// The meaning of `IBV_WC_*` number `n`.
fn meaning(n: u32) -> Meaning {
    use Code::*;
    use Reason::{LocalError, PeerGone, PeerStalled, RemoteError};
    match n {
        wc::IBV_WC_LOC_LEN_ERR => (
            "local length error",
            InvalidArgument,
            RemoteError,
            "a message was longer than the receive buffer; do both ends run the same version?",
        ),
        wc::IBV_WC_LOC_QP_OP_ERR => (
            "local queue pair operation error",
            Internal,
            LocalError,
            "the device refused the work request; see its driver's log",
        ),
        wc::IBV_WC_LOC_PROT_ERR => (
            "local protection error",
            PermissionDenied,
            LocalError,
            "the local memory is not registered, was deregistered, or lacks local write access",
        ),
        wc::IBV_WC_WR_FLUSH_ERR => (
            "flushed",
            Unavailable,
            PeerGone,
            "the connection had ended before this operation was carried out",
        ),
        wc::IBV_WC_MW_BIND_ERR => ("memory window bind error", Internal, LocalError, ""),
        wc::IBV_WC_BAD_RESP_ERR => (
            "bad response",
            Unavailable,
            RemoteError,
            "the peer's device answered with an unexpected packet; check firmware on both ends",
        ),
        wc::IBV_WC_LOC_ACCESS_ERR => (
            "local access error",
            PermissionDenied,
            LocalError,
            "the peer's write went outside of a local region or its access bits",
        ),
        wc::IBV_WC_REM_INV_REQ_ERR => (
            "remote invalid request",
            InvalidArgument,
            RemoteError,
            "the peer's device refused the request: longer than its buffer, or an access that the \
             endpoint or region does not allow",
        ),
        wc::IBV_WC_REM_ACCESS_ERR => (
            "remote access error",
            PermissionDenied,
            RemoteError,
            "the peer's region is revoked, too small or does not allow this access, or its key is \
             wrong",
        ),
        wc::IBV_WC_REM_OP_ERR => (
            "remote operation error",
            Unavailable,
            RemoteError,
            "the peer's device failed to complete the request; see the log of the peer's host",
        ),
        wc::IBV_WC_RETRY_EXC_ERR => (
            "retry exceeded",
            Unavailable,
            PeerGone,
            "no acknowledgement: the peer is gone, or the path is wrong (GID index, VLAN, MTU, \
             firewall on UDP port 4791, routing)",
        ),
        wc::IBV_WC_RNR_RETRY_EXC_ERR => (
            "receiver not ready",
            Unavailable,
            PeerStalled,
            "the peer's receive queue stayed empty: the peer does not poll",
        ),
        wc::IBV_WC_REM_ABORT_ERR => ("remote aborted", Unavailable, RemoteError, ""),
        wc::IBV_WC_FATAL_ERR => (
            "fatal device error",
            Unavailable,
            LocalError,
            "the local device failed; see the kernel log",
        ),
        wc::IBV_WC_RESP_TIMEOUT_ERR => ("response timeout", Unavailable, PeerGone, ""),
        wc::IBV_WC_LOC_EEC_OP_ERR
        | wc::IBV_WC_LOC_RDD_VIOL_ERR
        | wc::IBV_WC_REM_INV_RD_REQ_ERR
        | wc::IBV_WC_INV_EECN_ERR
        | wc::IBV_WC_INV_EEC_STATE_ERR => {
            ("reliable-datagram error", Internal, LocalError, "not used by this library")
        }
        wc::IBV_WC_TM_ERR | wc::IBV_WC_TM_RNDV_INCOMPLETE => {
            ("tag-matching error", Internal, LocalError, "not used by this library")
        }
        wc::IBV_WC_GENERAL_ERR => ("transport error", Unavailable, LocalError, ""),
        _ => ("unknown error", Unavailable, LocalError, "a status newer than this library"),
    }
}

/// The status of a failed completion. Only fields that are valid on error are asked for.
pub(super) fn completion(status: u32, vendor: u32, what: &str, local: &str, peer: &str) -> Status {
    let (name, code, reason, hint) = meaning(status);
    let colon = if hint.is_empty() { "" } else { ": " };
    let message = text!(
        "{what} between {local} and {peer}: {name} (status {status}, vendor {vendor:#x}){colon}{hint}"
    );
    Status::new(code, message).because(reason)
}

/// The status of an operation that never ran because of `root`.
pub(super) fn flushed(root: &Status) -> Status {
    let reason = match root.reason {
        Reason::None => Reason::PeerGone,
        r => r,
    };
    Status::new(Code::Unavailable, text!("not carried out, the connection ended: {}", root.message))
        .because(reason)
}

/// The status of an endpoint that ended because of `root`.
pub(super) fn down(peer: &str, root: &Status) -> Status {
    let reason = match root.reason {
        Reason::None => Reason::PeerGone,
        r => r,
    };
    Status::new(Code::Unavailable, text!("connection to {peer} ended: {}", root.message))
        .because(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_decoded_with_both_names() {
        for n in 1..24 {
            let s = completion(n, 0x81, "write", "worker0", "worker1");
            assert!(s.message.contains("worker0") && s.message.contains("worker1"), "{s}");
            assert!(!s.message.contains("unknown"), "{n}: {s}");
            assert_ne!(s.code, Code::Ok);
        }
        assert!(completion(99, 0, "write", "a", "b").message.contains("unknown"));
    }

    #[test]
    fn gone_stalled_and_refused_are_told_apart() {
        let of = |n| completion(n, 0, "write", "a", "b");
        assert_eq!(of(12).reason, Reason::PeerGone);
        assert_eq!(of(13).reason, Reason::PeerStalled);
        assert_eq!(of(10).code, Code::PermissionDenied);
        assert_eq!(flushed(&of(10)).code, Code::Unavailable);
        assert_eq!(down("b", &of(12)).reason, Reason::PeerGone);
    }
}
