//! Messages: each state × what ends it, or might, as `STATE::EVENT`. Both ends of the message are told how it ended, once.
//! A pipeline has its own, in `pipeline`.

use rdma_transport::engine::front::message::{Envelope, Mode, Wanted};
use rdma_transport::engine::layout::LAYOUT;
use rdma_transport::status::{Code, Reason};

use super::kind::Kind;
use super::messages::{ALL, ANY, Op, Post, TAG};
use super::script::{LARGE, R, S, Setup, ibverbs, shm};

/// Where a message is when it is struck.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Behind another, of which the content is copied.
    Queued,
    /// Its content is copied before it goes out.
    Gathering,
    /// No receive is there, and the sender has told the receiver of it.
    Offered,
    /// No receive is there, and its content is at the receiver; the sender waits for the match.
    Unmatched,
    /// The receiver has asked for the content, and the sender has not heard of that.
    Granted,
    /// A READ of it is under way.
    Reading,
    /// A WRITE of it is.
    Writing,
    /// The content, or a leg of it, is copied to its place.
    Copying,
    /// A probe has claimed it, and no receive has taken it yet.
    Claimed,
}

/// How its content goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Eager,
    /// The same, and the sender waits for the match.
    Synchronous,
    Put,
    Get,
    /// From or into memory in pieces.
    Legs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    CancelSend,
    CancelRecv,
    GiveUpSend,
    GiveUpRecv,
    Loss,
    CrashSender,
    CrashReceiver,
    DisconnectSender,
    DisconnectReceiver,
    EndSender,
    EndReceiver,
}

type End = Option<(Code, Reason)>;

const FINE: End = Some((Code::Ok, Reason::None));
/// Nothing has ended it: a receive waits for another message, a send for another receive.
const WAITS: End = None;
/// It was in a process that is no more.
const DEAD: End = Some((Code::Unavailable, Reason::PeerGone));
/// There is no receive, since none can begin.
const NOBODY: End = Some((Code::NotFound, Reason::None));

const CANCELLED: End = Some((Code::Cancelled, Reason::Cancelled));
/// The other end does not want it any more.
const TAKEN: End = Some((Code::Cancelled, Reason::RemoteError));
/// The same, found by a WRITE that met no window.
const REFUSED: End = Some((Code::Cancelled, Reason::None));
const GONE: End = Some((Code::Unavailable, Reason::PeerGone));
const DISCONNECTED: End = Some((Code::Unavailable, Reason::Cancelled));

fn end(op: &Op) -> End {
    let ended = op.ended.as_ref()?;
    Some(ended.result.as_ref().map_or_else(|s| (s.code, s.reason), |()| (Code::Ok, Reason::None)))
}

/// A message on its way, and its receive if that is there.
struct Case {
    p: Post,
    send: usize,
    recv: Option<usize>,
}

impl Way {
    fn setup(self, at: At, setup: Setup) -> Setup {
        match self {
            Way::Put if at == At::Copying => setup.no_reads().proxies(),
            Way::Get if at == At::Copying => setup.proxies(),
            Way::Put => setup.no_reads(),
            Way::Legs if matches!(at, At::Writing | At::Granted) => setup.no_reads(),
            _ => setup,
        }
    }

    fn send(self, p: &mut Post, at: At, tag: Envelope) -> usize {
        let to = p.other(S);
        let mode = if self == Way::Synchronous { Mode::Synchronous } else { Mode::Standard };
        let (len, from) = match self {
            Way::Eager | Way::Synchronous => (8, 0),
            Way::Put | Way::Get => (LARGE, 0),
            // What lies in pieces is neither read nor written: it comes in messages.
            Way::Legs if matches!(at, At::Reading | At::Writing) => (LARGE, 0),
            Way::Legs => (LARGE, LAYOUT),
        };
        p.send_from(S, to, tag, (len, from, at != At::Gathering), mode)
    }

    /// A device, or the place of pieces, that the receive is for.
    fn into(self, at: At) -> u32 {
        match self {
            Way::Legs => LAYOUT,
            Way::Eager if at == At::Copying => 1,
            _ => 0,
        }
    }
}

fn reach(at: At, way: Way, setup: Setup) -> Case {
    let mut p = Post::new(way.setup(at, setup));
    match at {
        At::Queued | At::Gathering => p.s.hold(S, Kind::Copy),
        At::Granted => p.s.hold(R, Kind::MsgGrant),
        At::Reading => p.s.hold(R, Kind::Read),
        // A leg is so short that it goes in one, which says that it is there.
        At::Writing => [Kind::Write, Kind::Imm].into_iter().for_each(|kind| p.s.hold(S, kind)),
        At::Copying => p.s.hold(R, Kind::Copy),
        At::Offered | At::Unmatched | At::Claimed => {}
    }
    if at == At::Queued {
        let before = Envelope { comm: 1, tag: 0 };
        Way::Eager.send(&mut p, At::Gathering, before);
    }
    let waits = !matches!(at, At::Offered | At::Unmatched | At::Claimed);
    let recv = waits.then(|| p.recv_into(R, ANY, LARGE, way.into(at), None));
    let send = way.send(&mut p, at, TAG);
    p.run();
    if at == At::Claimed {
        p.probe(R, ANY, true).expect("a message that has no receive");
    }
    Case { p, send, recv }
}

impl Case {
    /// What shows that the message is where it is to be.
    fn is_at(&self, at: At, way: Way) {
        let p = &self.p;
        let sent = end(&p.sends[self.send]);
        let early = at == At::Claimed && way == Way::Eager || at == At::Copying && way != Way::Legs;
        assert!(sent.is_none() || early, "{at:?} is not reached");
        assert_eq!(self.recv.and_then(|r| end(&p.recvs[r])), None, "{at:?} is not reached");
        match at {
            At::Queued | At::Gathering => assert_eq!(p.s.awaited(S), [Kind::Copy]),
            At::Granted => assert_eq!(p.s.wire(R)[0], Kind::MsgGrant),
            At::Reading => assert_eq!(p.s.wire(R)[0], Kind::Read),
            At::Writing => assert!([Kind::Write, Kind::Imm].contains(&p.s.wire(S)[0])),
            At::Copying => assert_eq!(p.s.awaited(R), [Kind::Copy]),
            At::Offered => assert_eq!(p.s.count(S, Kind::MsgOffer), 1),
            At::Unmatched => assert_eq!(p.s.count(S, Kind::Msg), 1),
            At::Claimed => assert_eq!(p.claims.len(), 1),
        }
    }

    fn strike(&mut self, by: By) {
        let p = &mut self.p;
        let sent = p.sends[self.send].id;
        let received = self.recv.map_or(0, |r| p.recvs[r].id);
        match by {
            By::CancelSend => p.cancel(S, sent).unwrap(),
            By::CancelRecv => p.cancel(R, received).unwrap(),
            By::GiveUpSend => p.give_up(S, sent).unwrap(),
            By::GiveUpRecv => p.give_up(R, received).unwrap(),
            By::Loss => p.s.cut(),
            By::CrashSender => p.crash(S, false),
            By::CrashReceiver => p.crash(R, false),
            By::DisconnectSender => p.s.disconnect(S),
            By::DisconnectReceiver => p.s.disconnect(R),
            By::EndSender => p.s.shut_down(S),
            By::EndReceiver => p.s.shut_down(R),
        }
        p.run(); // The other end hears of it while that is still held.
        p.s.let_all_go();
        p.look();
    }

    /// Now there is a receive for what had none, if anybody can begin one.
    fn receive(&mut self, way: Way) {
        let p = &mut self.p;
        if self.recv.is_some() || !p.lives(R) {
            return;
        }
        let claim = p.claims.pop().map(|(_, found)| found.message);
        let wanted = Wanted { tag: TAG.tag, mask: ALL, ..ANY };
        self.recv = Some(p.recv_into(R, wanted, LARGE, way.into(At::Offered), claim));
        p.run();
    }
}

/// A message that is there is struck, where memory ends at once, by windows, and where it does not.
fn ends(at: At, way: Way, by: By, sent: &[End], received: End) {
    let setups = if at == At::Copying { vec![ibverbs()] } else { vec![shm(), ibverbs()] };
    for (i, setup) in setups.into_iter().enumerate() {
        let mut case = reach(at, way, setup);
        case.is_at(at, way);
        case.strike(by);
        case.receive(way);
        let Case { p, send, recv } = &mut case;
        let ends = (end(&p.sends[*send]), recv.map_or(NOBODY, |r| end(&p.recvs[r])));
        assert_eq!(ends, (sent[i % sent.len()], received), "{at:?}, {way:?}, {by:?}, setup {i}");
        p.finish();
    }
}

/// How the send ends (by windows, and without, where that differs), and the receive.
macro_rules! ends {
    ($($state:ident: $at:ident $way:ident {
        $($name:ident: $by:ident => $($sent:ident)|+, $received:ident;)*
    })*) => {$(
        mod $state {
            use super::*;
            $(#[test]
            fn $name() {
                ends(At::$at, Way::$way, By::$by, &[$($sent),+], $received);
            })*
        }
    )*};
}

ends! {
    queued_eager: Queued Eager {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        cancel_of_the_receive: CancelRecv => FINE, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        give_up_of_the_receive: GiveUpRecv => FINE, CANCELLED;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    queued_put: Queued Put {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        cancel_of_the_receive: CancelRecv => WAITS, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        give_up_of_the_receive: GiveUpRecv => WAITS, CANCELLED;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    queued_get: Queued Get {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        cancel_of_the_receive: CancelRecv => WAITS, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        give_up_of_the_receive: GiveUpRecv => WAITS, CANCELLED;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    queued_legs: Queued Legs {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        cancel_of_the_receive: CancelRecv => WAITS, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        give_up_of_the_receive: GiveUpRecv => WAITS, CANCELLED;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    gathering_eager: Gathering Eager {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        cancel_of_the_receive: CancelRecv => FINE, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        give_up_of_the_receive: GiveUpRecv => FINE, CANCELLED;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    offered_put: Offered Put {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }

    offered_get: Offered Get {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }

    offered_legs: Offered Legs {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        loss: Loss => GONE, WAITS;
        crash_of_the_sender: CrashSender => DEAD, WAITS;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, WAITS;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, WAITS;
        end_of_the_sender: EndSender => CANCELLED, WAITS;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }

    unmatched_synchronous: Unmatched Synchronous {
        cancel_of_the_send: CancelSend => CANCELLED, WAITS;
        give_up_of_the_send: GiveUpSend => CANCELLED, WAITS;
        loss: Loss => GONE, FINE;
        crash_of_the_sender: CrashSender => DEAD, FINE;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, FINE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, FINE;
        end_of_the_sender: EndSender => CANCELLED, FINE;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }

    granted_put: Granted Put {
        cancel_of_the_send: CancelSend => FINE, FINE;
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_send: GiveUpSend => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => REFUSED | FINE, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, DISCONNECTED;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    granted_legs: Granted Legs {
        cancel_of_the_send: CancelSend => FINE, FINE;
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_send: GiveUpSend => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => REFUSED | TAKEN, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, DISCONNECTED;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    reading_get: Reading Get {
        cancel_of_the_send: CancelSend => FINE, FINE;
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_send: GiveUpSend => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => TAKEN, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, DISCONNECTED;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    reading_legs: Reading Legs {
        cancel_of_the_send: CancelSend => FINE, FINE;
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_send: GiveUpSend => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => TAKEN, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, DISCONNECTED;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    writing_put: Writing Put {
        cancel_of_the_send: CancelSend => FINE, FINE;
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_send: GiveUpSend => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => REFUSED | FINE, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, DISCONNECTED;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    writing_legs: Writing Legs {
        cancel_of_the_send: CancelSend => FINE, FINE;
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_send: GiveUpSend => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => REFUSED | TAKEN, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, DISCONNECTED;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    copying_eager: Copying Eager {
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => FINE, CANCELLED;
        loss: Loss => FINE, FINE;
        crash_of_the_sender: CrashSender => FINE, FINE;
        crash_of_the_receiver: CrashReceiver => FINE, DEAD;
        disconnect_by_the_sender: DisconnectSender => FINE, FINE;
        disconnect_by_the_receiver: DisconnectReceiver => FINE, FINE;
        end_of_the_sender: EndSender => FINE, FINE;
        end_of_the_receiver: EndReceiver => FINE, CANCELLED;
    }

    copying_put: Copying Put {
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => FINE, CANCELLED;
        loss: Loss => FINE, FINE;
        crash_of_the_sender: CrashSender => FINE, FINE;
        crash_of_the_receiver: CrashReceiver => FINE, DEAD;
        disconnect_by_the_sender: DisconnectSender => FINE, FINE;
        disconnect_by_the_receiver: DisconnectReceiver => FINE, FINE;
        end_of_the_sender: EndSender => FINE, FINE;
        end_of_the_receiver: EndReceiver => FINE, CANCELLED;
    }

    copying_get: Copying Get {
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => FINE, CANCELLED;
        loss: Loss => FINE, FINE;
        crash_of_the_sender: CrashSender => FINE, FINE;
        crash_of_the_receiver: CrashReceiver => FINE, DEAD;
        disconnect_by_the_sender: DisconnectSender => FINE, FINE;
        disconnect_by_the_receiver: DisconnectReceiver => FINE, FINE;
        end_of_the_sender: EndSender => FINE, FINE;
        end_of_the_receiver: EndReceiver => FINE, CANCELLED;
    }

    copying_legs: Copying Legs {
        cancel_of_the_send: CancelSend => FINE, FINE;
        cancel_of_the_receive: CancelRecv => FINE, FINE;
        give_up_of_the_send: GiveUpSend => FINE, FINE;
        give_up_of_the_receive: GiveUpRecv => TAKEN, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, DEAD;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, DISCONNECTED;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, CANCELLED;
    }

    claimed_eager: Claimed Eager {
        loss: Loss => FINE, FINE;
        crash_of_the_sender: CrashSender => FINE, FINE;
        crash_of_the_receiver: CrashReceiver => FINE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => FINE, FINE;
        disconnect_by_the_receiver: DisconnectReceiver => FINE, FINE;
        end_of_the_sender: EndSender => FINE, FINE;
        end_of_the_receiver: EndReceiver => FINE, NOBODY;
    }

    claimed_synchronous: Claimed Synchronous {
        cancel_of_the_send: CancelSend => CANCELLED, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, CANCELLED;
        loss: Loss => GONE, FINE;
        crash_of_the_sender: CrashSender => DEAD, FINE;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, FINE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, FINE;
        end_of_the_sender: EndSender => CANCELLED, FINE;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }

    claimed_put: Claimed Put {
        cancel_of_the_send: CancelSend => CANCELLED, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, GONE;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }

    claimed_get: Claimed Get {
        cancel_of_the_send: CancelSend => CANCELLED, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, GONE;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }

    claimed_legs: Claimed Legs {
        cancel_of_the_send: CancelSend => CANCELLED, CANCELLED;
        give_up_of_the_send: GiveUpSend => CANCELLED, CANCELLED;
        loss: Loss => GONE, GONE;
        crash_of_the_sender: CrashSender => DEAD, GONE;
        crash_of_the_receiver: CrashReceiver => GONE, NOBODY;
        disconnect_by_the_sender: DisconnectSender => DISCONNECTED, GONE;
        disconnect_by_the_receiver: DisconnectReceiver => GONE, GONE;
        end_of_the_sender: EndSender => CANCELLED, GONE;
        end_of_the_receiver: EndReceiver => GONE, NOBODY;
    }
}
