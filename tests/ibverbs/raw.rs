//! A hostile peer: verbs without the library, so that nothing on its side keeps it from misbehaving.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::time::Instant;

use rdma_sys::*;
use rdma_transport::fabric::ibverbs::address::{Address, LinkLayer};

use super::ends::PATIENCE;

/// A control function of libibverbs, which tests do not link.
macro_rules! verb {
    ($symbol:literal: fn($($arg:ty),*) -> $ret:ty) => {{
        type F = unsafe extern "C" fn($($arg),*) -> $ret;
        let name: &CStr = $symbol;
        // SAFETY: a NUL-terminated name; the library stays loaded.
        let p = unsafe {
            let lib = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
            libc::dlsym(lib, name.as_ptr())
        };
        assert!(!p.is_null(), "{name:?}");
        // SAFETY: the function's signature in version 1 of the library's ABI.
        unsafe { std::mem::transmute::<*mut c_void, F>(p) }
    }};
}

/// What to post.
pub struct Post {
    /// `ibv_wr_opcode`
    pub opcode: ibv_wr_opcode::Type,
    /// Immediate, where the opcode has one.
    pub imm: u32,
    /// Bytes, of the hostile peer's buffer.
    pub len: u32,
    /// Remote address and key.
    pub to: (u64, u32),
}

impl Post {
    /// A SEND of the buffer's first bytes, as the library marks its messages.
    pub fn message(len: usize) -> Post {
        let opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        Post { opcode, imm: 0xffff_ffff, len: len as u32, to: (0, 0) }
    }
}

/// One queue pair with its buffers.
pub struct Raw {
    ctx: *mut ibv_context,
    pd: *mut ibv_pd,
    qp: *mut ibv_qp,
    cq: *mut ibv_cq,
    mr: [*mut ibv_mr; 2],
    mine: Address,
    gid_index: u8,
    /// What it sends.
    pub buf: Vec<u8>,
    receives: Vec<u8>,
    inbox: RefCell<Vec<Vec<u8>>>,
    probe: Cell<Option<usize>>,
}

/// Bytes that it can send at once.
const BUFFER: usize = 64 << 10;
/// Receives that are posted from the start, never again.
const RECEIVES: usize = 100;
/// Bytes of each.
const RECEIVE: usize = 9216;
/// Marks the ids of receives.
const RECV: u64 = 1 << 32;
/// The id of the first request.
const HELLO: u64 = 1 << 33;
/// The immediate of a SEND that tries the path.
const IMM_PROBE: u32 = 0xffff_fffd;

fn blank() -> ibv_qp_attr {
    // SAFETY: all zeroes is a valid value of this plain struct.
    unsafe { std::mem::zeroed() }
}

fn open(device: &str) -> *mut ibv_context {
    let list = verb!(c"ibv_get_device_list": fn(*mut c_int) -> *mut *mut ibv_device);
    let name = verb!(c"ibv_get_device_name": fn(*mut ibv_device) -> *const c_char);
    let open = verb!(c"ibv_open_device": fn(*mut ibv_device) -> *mut ibv_context);
    let mut n = 0;
    // SAFETY: a list of `n` devices, each with a name.
    unsafe {
        let all = list(&mut n);
        for i in 0..n as usize {
            let d = *all.add(i);
            if CStr::from_ptr(name(d)).to_bytes() == device.as_bytes() {
                return open(d);
            }
        }
    }
    panic!("no device {device}");
}

impl Raw {
    /// A queue pair on `device`, whose port has the GID of `like`.
    pub fn new(device: &str, like: &[u8]) -> Raw {
        let like = Address::decode(like).expect("address");
        let ctx = open(device);
        let mut buf = vec![0x5au8; BUFFER];
        let mut receives = vec![0u8; RECEIVES * RECEIVE];
        let alloc_pd = verb!(c"ibv_alloc_pd": fn(*mut ibv_context) -> *mut ibv_pd);
        let create_cq = verb!(c"ibv_create_cq":
            fn(*mut ibv_context, c_int, *mut c_void, *mut c_void, c_int) -> *mut ibv_cq);
        let reg = verb!(c"ibv_reg_mr":
            fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr);
        let create_qp = verb!(c"ibv_create_qp":
            fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp);
        // SAFETY: an open context; the buffer lives as long as the process uses it.
        let (pd, qp, cq, mr) = unsafe {
            let pd = alloc_pd(ctx);
            let cq = create_cq(ctx, 1024, std::ptr::null_mut(), std::ptr::null_mut(), 0);
            let mr = reg(pd, buf.as_mut_ptr().cast(), BUFFER, 1);
            let mr2 = reg(pd, receives.as_mut_ptr().cast(), receives.len(), 1);
            let mut a: ibv_qp_init_attr = std::mem::zeroed();
            (a.send_cq, a.recv_cq) = (cq, cq);
            a.cap.max_send_wr = 512;
            a.cap.max_recv_wr = 128;
            a.cap.max_send_sge = 1;
            a.cap.max_recv_sge = 1;
            a.qp_type = ibv_qp_type::IBV_QPT_RC;
            (pd, create_qp(pd, &mut a), cq, [mr, mr2])
        };
        assert!(!qp.is_null() && !cq.is_null() && !mr.contains(&std::ptr::null_mut()));
        // SAFETY: a live queue pair.
        let qpn = unsafe { (*qp).qp_num };
        let gid_index = gid_index(ctx, &like.gid);
        // SAFETY: a live region.
        let lkey = unsafe { (*mr[1]).lkey };
        let mine = Address { qpn, psn: 77, ..like };
        let (inbox, probe) = (RefCell::default(), Cell::default());
        let raw = Raw { ctx, pd, qp, cq, mr, mine, gid_index, buf, receives, inbox, probe };
        raw.to_init();
        (0..RECEIVES).for_each(|i| raw.post_receive(i, lkey));
        raw
    }

    fn to_init(&self) {
        use ibv_qp_attr_mask as m;
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_INIT;
        a.port_num = 1;
        // The library's writes that return credits carry no data and need no region.
        a.qp_access_flags = ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        self.modify(
            a,
            m::IBV_QP_STATE | m::IBV_QP_PKEY_INDEX | m::IBV_QP_PORT | m::IBV_QP_ACCESS_FLAGS,
        );
    }

    fn post_receive(&self, i: usize, lkey: u32) {
        let addr = self.receives.as_ptr() as u64 + (i * RECEIVE) as u64;
        let mut sge = ibv_sge { addr, length: RECEIVE as u32, lkey };
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut wr: ibv_recv_wr = unsafe { std::mem::zeroed() };
        (wr.wr_id, wr.sg_list, wr.num_sge) = (RECV | i as u64, &mut sge, 1);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the buffer lives as long.
        assert_eq!(unsafe { ibv_post_recv(self.qp, &mut wr, &mut bad) }, 0);
    }

    /// What the victim needs to connect.
    pub fn address(&self) -> Vec<u8> {
        self.mine.encode()
    }

    fn modify(&self, mut a: ibv_qp_attr, mask: ibv_qp_attr_mask) {
        let modify = verb!(c"ibv_modify_qp":
            fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int);
        // SAFETY: a live queue pair and a filled-in struct.
        let rc = unsafe { modify(self.qp, &mut a, mask.0 as i32) };
        assert_eq!(rc, 0, "state {}", a.qp_state);
    }

    /// Connects, as the library's endpoints do.
    pub fn connect(&self, victim: &[u8], rnr_retry: u8) {
        self.ready(victim, rnr_retry);
        self.say_hello();
    }

    /// Sends what shows the victim that the path works.
    pub fn say_hello(&self) {
        let opcode = ibv_wr_opcode::IBV_WR_SEND_WITH_IMM;
        self.post_as(&Post { opcode, imm: IMM_PROBE, len: 1024, to: (0, 0) }, HELLO);
    }

    /// Readies the queue pair; a SEND is given up after `rnr_retry` times "receiver not ready" (7: never).
    pub fn ready(&self, victim: &[u8], rnr_retry: u8) {
        use ibv_qp_attr_mask as m;
        let far = Address::decode(victim).expect("address");
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_RTR;
        a.path_mtu = u32::from(self.mine.mtu.min(far.mtu));
        a.dest_qp_num = far.qpn;
        a.rq_psn = far.psn;
        a.max_dest_rd_atomic = 1;
        a.min_rnr_timer = 12;
        a.ah_attr.port_num = 1;
        a.ah_attr.dlid = far.lid;
        a.ah_attr.is_global = u8::from(far.link == LinkLayer::Ethernet);
        a.ah_attr.grh.dgid = ibv_gid { raw: far.gid };
        a.ah_attr.grh.sgid_index = self.gid_index;
        a.ah_attr.grh.hop_limit = 64;
        self.modify(
            a,
            m::IBV_QP_STATE
                | m::IBV_QP_AV
                | m::IBV_QP_PATH_MTU
                | m::IBV_QP_DEST_QPN
                | m::IBV_QP_RQ_PSN
                | m::IBV_QP_MAX_DEST_RD_ATOMIC
                | m::IBV_QP_MIN_RNR_TIMER,
        );
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_RTS;
        (a.timeout, a.retry_cnt, a.rnr_retry) = (14, 6, rnr_retry);
        a.sq_psn = self.mine.psn;
        a.max_rd_atomic = 1;
        self.modify(
            a,
            m::IBV_QP_STATE
                | m::IBV_QP_TIMEOUT
                | m::IBV_QP_RETRY_CNT
                | m::IBV_QP_RNR_RETRY
                | m::IBV_QP_SQ_PSN
                | m::IBV_QP_MAX_QP_RD_ATOMIC,
        );
    }

    /// Forces the queue pair into the error state.
    pub fn error(&self) {
        let mut a = blank();
        a.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.modify(a, ibv_qp_attr_mask::IBV_QP_STATE);
    }

    /// Posts one request, signalled.
    pub fn post(&self, p: &Post) {
        self.post_as(p, 0);
    }

    fn post_as(&self, p: &Post, id: u64) {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        // SAFETY: a live region.
        let lkey = unsafe { (*self.mr[0]).lkey };
        let mut sge = ibv_sge { addr: self.buf.as_ptr() as u64, length: p.len, lkey };
        (wr.wr_id, wr.opcode) = (id, p.opcode);
        wr.imm_data_invalidated_rkey_union.imm_data = p.imm.to_be();
        wr.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        if p.opcode == ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD {
            wr.wr.atomic = atomic_t { remote_addr: p.to.0, compare_add: 1, swap: 0, rkey: p.to.1 };
        } else {
            wr.wr.rdma = rdma_t { remote_addr: p.to.0, rkey: p.to.1 };
        }
        wr.sg_list = &mut sge;
        wr.num_sge = i32::from(p.len > 0);
        let mut bad = std::ptr::null_mut();
        // SAFETY: a live queue pair; the buffer lives.
        assert_eq!(unsafe { ibv_post_send(self.qp, &mut wr, &mut bad) }, 0);
    }

    /// Takes completions: the status of a request, if one has ended.
    pub fn poll(&self) -> Option<u32> {
        // SAFETY: all zeroes is a valid value of this plain struct.
        let mut wc: ibv_wc = unsafe { std::mem::zeroed() };
        // SAFETY: a live queue and room for one completion.
        let n = unsafe { ibv_poll_cq(self.cq, 1, &mut wc) };
        if n == 1 && wc.wr_id & RECV != 0 {
            let at = (wc.wr_id & !RECV) as usize * RECEIVE;
            let len = if wc.status == 0 { wc.byte_len as usize } else { 0 };
            // SAFETY: both variants of the union are a number.
            let imm = u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data });
            if wc.status == 0 && imm == IMM_PROBE {
                self.probe.set(Some(len));
            } else {
                self.inbox.borrow_mut().push(self.receives[at..at + len].to_vec());
            }
            return None;
        }
        (n == 1 && wc.wr_id != HELLO).then_some(wc.status)
    }

    /// Takes completions of the start of the connection.
    pub fn idle(&self) {
        assert_eq!(self.poll(), None);
    }

    /// Bytes of the victim's probe, if it came.
    pub fn probe(&self) -> Option<usize> {
        self.idle();
        self.probe.get()
    }

    /// Whether a message that begins with this byte has come.
    pub fn heard(&self, first: u8) -> bool {
        while self.poll().is_some() {}
        self.inbox.borrow().iter().any(|m| m.first() == Some(&first))
    }

    /// Waits for a completion while `meanwhile` runs: its status.
    pub fn wait(&self, mut meanwhile: impl FnMut()) -> u32 {
        let start = Instant::now();
        loop {
            if let Some(status) = self.poll() {
                return status;
            }
            meanwhile();
            assert!(start.elapsed() < PATIENCE, "no completion");
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let destroy_qp = verb!(c"ibv_destroy_qp": fn(*mut ibv_qp) -> c_int);
        let destroy_cq = verb!(c"ibv_destroy_cq": fn(*mut ibv_cq) -> c_int);
        let dereg = verb!(c"ibv_dereg_mr": fn(*mut ibv_mr) -> c_int);
        let dealloc = verb!(c"ibv_dealloc_pd": fn(*mut ibv_pd) -> c_int);
        let close = verb!(c"ibv_close_device": fn(*mut ibv_context) -> c_int);
        // SAFETY: each made once and destroyed once, children first.
        let rc = unsafe {
            [
                destroy_qp(self.qp),
                destroy_cq(self.cq),
                dereg(self.mr[0]),
                dereg(self.mr[1]),
                dealloc(self.pd),
                close(self.ctx),
            ]
        };
        assert_eq!(rc, [0; 6]);
    }
}

fn gid_index(ctx: *mut ibv_context, gid: &[u8; 16]) -> u8 {
    let query = verb!(c"ibv_query_gid": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int);
    let same = |i: &u8| {
        let mut g = ibv_gid { raw: [0; 16] };
        // SAFETY: an open context; the library fills in a GID, of which any bytes are valid.
        unsafe { query(ctx, 1, i32::from(*i), &mut g) == 0 && g.raw == *gid }
    };
    (0..64).find(same).expect("an entry of this GID")
}
