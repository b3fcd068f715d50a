//! The environment, as far as it is the application's.
//!
//! A program that runs with more rights than who started it (set-user-ID, file capabilities: `AT_SECURE`) has an environment
//! from a stranger. Names of files from there would let him write over any file that the program may write (a trace), read of
//! those that it may read (what is wrong in a tuning file is shown, line by line) and choose the secret by which peers are
//! known; an address, let peers in where the program expects none. Those are not set there. The others are numbers and
//! choices within bounds that hold for any user, and stay: programs with a capability for locked memory are common.

use std::ffi::OsString;
use std::sync::OnceLock;

use crate::status::Status;

/// Names of files and folders, and where it listens.
const THEIRS: [&str; 7] = [
    "RDMA_TRACE",
    "RDMA_TUNING",
    "RDMA_AUTH_SECRET_FILE",
    "RDMA_LISTEN",
    "HOME",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
];

/// Whether the environment is a stranger's.
fn is_strange() -> bool {
    static STRANGE: OnceLock<bool> = OnceLock::new();
    // SAFETY: no pointers.
    *STRANGE.get_or_init(|| unsafe { libc::getauxval(libc::AT_SECURE) } != 0)
}

/// A variable of the environment; none whose value may not be a stranger's where it is one.
pub fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|_| !(THEIRS.contains(&name) && is_strange()))
}

/// The same as text.
pub fn text(name: &str) -> Result<Option<String>, Status> {
    let as_text = |value: OsString| {
        value
            .into_string()
            .map_err(|value| Status::invalid(text!("{name} is {value:?}, allowed is UTF-8 alone")))
    };
    variable(name).map(as_text).transpose()
}

/// Settings that are there and are not taken, for the log.
pub fn not_taken() -> impl Iterator<Item = &'static str> {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    THEIRS.into_iter().filter(move |name| name.starts_with("RDMA_") && is_strange() && set(name))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    const CHILD: &str = "RDMA_TEST_OF_RIGHTS";

    /// Root runs a copy of this program that runs as nobody, so with other rights than its caller's.
    #[test]
    fn a_program_with_other_rights_takes_no_file_of_its_caller() {
        if std::env::var_os(CHILD).is_some() {
            let trace = variable("RDMA_TRACE").is_some();
            let names: Vec<_> = not_taken().collect();
            let other = variable("RDMA_PROVIDER").is_some();
            println!("strange {} trace {trace} other {other} {names:?}", is_strange());
            return;
        }
        // SAFETY: no pointers.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!("skipped: only root can make such a program");
            return;
        }
        let copy = std::env::temp_dir().join(format!("rdma-rights-{}", std::process::id()));
        std::fs::copy("/proc/self/exe", &copy).unwrap();
        let run = |mode| {
            std::os::unix::fs::chown(&copy, Some(65534), None).unwrap();
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(mode)).unwrap();
            let test =
                "os::environment::tests::a_program_with_other_rights_takes_no_file_of_its_caller";
            let mut command = Command::new(&copy);
            command
                .args(["--exact", test, "--nocapture"])
                .env_remove("RDMA_AUTH_SECRET_FILE")
                .env_remove("RDMA_LISTEN")
                .envs([(CHILD, "1"), ("RDMA_TRACE", "t"), ("RDMA_TUNING", "u")])
                .env("RDMA_PROVIDER", "tcp");
            // A child of another test may still have the copy open for writing.
            let said = loop {
                match command.output() {
                    Err(e) if e.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                    said => break said.unwrap(),
                }
            };
            String::from_utf8_lossy(&said.stdout).into_owned()
        };
        let (own, strange) = (run(0o755), run(0o4755));
        std::fs::remove_file(&copy).unwrap();
        assert!(own.contains("strange false trace true other true []"), "{own}");
        if strange.contains("strange false") {
            eprintln!("skipped: no program gets other rights here (nosuid, no_new_privs)");
            return;
        }
        let want = "strange true trace false other true [\"RDMA_TRACE\", \"RDMA_TUNING\"]";
        assert!(strange.contains(want), "{strange}");
    }
}
