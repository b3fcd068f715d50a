//! Variables of the environment that are nearly settings: a name with a slip in it would change nothing, and say nothing.
//! Names that are like none of ours are somebody else's, whatever they begin with.

use std::ffi::{CStr, c_char};

use crate::os::environment;
use crate::status::Status;

/// Each variable that the library and its parts read.
const KNOWN: [&str; 36] = [
    "RDMA_AUTH_SECRET_FILE",
    "RDMA_BUSY_POLL_US",
    "RDMA_DEVICE",
    "RDMA_DEVICE_PORT",
    "RDMA_EAGER_LIMIT",
    "RDMA_GID_INDEX",
    "RDMA_LISTEN",
    "RDMA_LOG",
    "RDMA_MAX_RDMA_PER_REQUEST",
    "RDMA_MAX_REGION",
    "RDMA_MAX_SEND_SIZE",
    "RDMA_MIN_RDMA_PIPELINE_SIZE",
    "RDMA_MIN_STRIPED_SIZE",
    "RDMA_PEER_TIMEOUT_MS",
    "RDMA_PIPELINE_FRAG_SIZE",
    "RDMA_PIPELINE_SEND_LENGTH",
    "RDMA_PROTOCOL",
    "RDMA_PROVIDER",
    "RDMA_QP_MTU",
    "RDMA_QP_PKEY_INDEX",
    "RDMA_QP_QUEUE_DEPTH",
    "RDMA_QP_RETRY_COUNT",
    "RDMA_QP_SL",
    "RDMA_QP_TIMEOUT",
    "RDMA_REGISTRATION_CACHE",
    "RDMA_RNDV_EAGER_LIMIT",
    "RDMA_SEND_PIPELINE_DEPTH",
    "RDMA_SHM_COPY",
    "RDMA_TF_GPUDIRECT",
    "RDMA_TF_POOL",
    "RDMA_TF_POOL_BYTES",
    "RDMA_TIMEOUT_MS",
    "RDMA_TRACE",
    "RDMA_TRAFFIC_CLASS",
    "RDMA_TUNING",
    "RDMA_TEST_PATIENCE",
];
/// Longer names are no slips.
const LONGEST: usize = 40;

/// The value of each variable that is set has to be text: half of a path, or of an address, would be another one.
pub fn are_text() -> Result<(), Status> {
    KNOWN.iter().try_for_each(|name| environment::text(name).map(drop))
}

/// Tells of each variable of this process's environment that is nearly a setting: its name, and the setting's.
pub fn each(mut tell: impl FnMut(&str, &'static str)) {
    unsafe extern "C" {
        static environ: *const *const c_char;
    }
    // SAFETY: the environment as the C library has it: pointers to strings, the last one NULL. As with getenv, nobody may
    // change it meanwhile.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            if let Some((name, meant)) = slip(CStr::from_ptr(*at).to_bytes()) {
                tell(name, meant);
            }
            at = at.add(1);
        }
    }
}

/// Of an entry `name=value`.
fn slip(entry: &[u8]) -> Option<(&str, &'static str)> {
    let name = entry.split(|&b| b == b'=').next().unwrap_or_default();
    if !name.starts_with(b"RDMA_") || name.len() > LONGEST {
        return None;
    }
    let name = std::str::from_utf8(name).ok()?;
    meant(name).map(|meant| (name, meant))
}

/// The setting that is meant by a name which is none: one letter away, or two where the name is long.
fn meant(name: &str) -> Option<&'static str> {
    if KNOWN.contains(&name) {
        return None;
    }
    let far = |known: &&'static str| distance(name.as_bytes(), known.as_bytes());
    let nearest = KNOWN.iter().copied().min_by_key(far)?;
    let most = if name.len() >= "RDMA_PROVIDER".len() { 2 } else { 1 };
    (far(&nearest) <= most).then_some(nearest)
}

/// Letters to put in, take out, replace or swap with their neighbour until one name is the other (Damerau, 1964; each
/// place is changed once at most).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut rows = [[0; LONGEST + 1]; 3];
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        let (now, last, before) = (i % 3, (i + 2) % 3, (i + 1) % 3);
        rows[now][0] = i;
        for j in 1..=b.len().min(LONGEST) {
            let other = usize::from(a[i - 1] != b[j - 1]);
            let mut least =
                (rows[last][j] + 1).min(rows[now][j - 1] + 1).min(rows[last][j - 1] + other);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[before][j - 2] + 1);
            }
            rows[now][j] = least;
        }
    }
    rows[a.len() % 3][b.len().min(LONGEST)]
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::config::Config;

    #[test]
    fn a_slip_is_told_and_a_strangers_name_is_not() {
        let cases = [
            ("RDMA_PROVDER=tcp", Some("RDMA_PROVIDER")),
            ("RDMA_PROVIEDR=tcp", Some("RDMA_PROVIDER")),
            ("RDMA_EAGER_LIMTI=1", Some("RDMA_EAGER_LIMIT")),
            ("RDMA_TIMEOUTMS", Some("RDMA_TIMEOUT_MS")),
            ("RDMA_LGO=debug", Some("RDMA_LOG")),
            ("RDMA_PROVIDER=tcp", None),
            ("RDMA_PROVIDER_NAME=tcp", None),
            ("RDMA_CORE=1", None),
            ("RDMA_=1", None),
            ("RDMAV_FORK_SAFE=1", None),
            ("PATH=RDMA_PROVDER=", None),
            ("RDMA_AUTH_SECRET_FILE_OF_THE_OTHER_MACHINE_AND_MORE=x", None),
            ("", None),
        ];
        for (entry, meant) in cases {
            assert_eq!(slip(entry.as_bytes()).map(|found| found.1), meant, "{entry}");
        }
        assert_eq!(slip(b"RDMA_PROVIDE\xFF=1"), None);
    }

    #[test]
    fn distances() {
        for (a, b, far) in
            [("", "", 0), ("", "abc", 3), ("abc", "", 3), ("ab", "ba", 1), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), far, "{a} {b}");
        }
        let long = [b'x'; LONGEST];
        assert_eq!(distance(&long, &[b'y'; LONGEST]), LONGEST);
    }

    #[test]
    fn what_is_read_is_known() {
        let asked = RefCell::new(Vec::new());
        let ask = |name: &str| {
            asked.borrow_mut().push(name.to_owned());
            None
        };
        Config::default().apply_env(ask).unwrap();
        Config::default().apply_tuning(ask).unwrap();
        for name in asked.borrow().iter().filter(|name| name.starts_with("RDMA_")) {
            assert!(KNOWN.contains(&name.as_str()), "{name}");
        }
        assert!(asked.borrow().len() > 25);
        assert!(KNOWN.iter().all(|name| name.len() <= LONGEST));
    }
}
