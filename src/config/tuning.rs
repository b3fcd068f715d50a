//! Sizes by provider, out of a file that `rdma_tune` writes for a machine: lines of `provider.setting = value`.
//!
//! What the application or the environment says goes before it. `docs/tuning.md` describes the file.

use std::path::PathBuf;

use super::Config;
use crate::engine::transfer::sizes::{Chosen, SIZES, Sizes};
use crate::fabric::ProviderKind;
use crate::os::files;
use crate::status::{Code, Status};

/// Longest file in bytes.
const MAX_FILE: u64 = 64 << 10;
/// Most bytes of a line that an error shows.
const SHOWN: usize = 80;
/// Where it lies if the environment does not say: below the user's folder for settings, or for all users.
const OWN: &str = "rdma-transport/tuning";
const ALL: &str = "/etc/rdma-transport/tuning";

/// What a file says, by provider.
pub type Tuning = Box<[Chosen; 4]>;

/// What became of the file, for the log.
#[derive(Debug, PartialEq, Eq)]
pub enum TuningOutcome {
    /// There is none.
    Nothing,
    /// It is in force.
    Read(String),
    /// One that the environment does not name, and that is wrong: it counts as none.
    Wrong(String),
}

impl Config {
    /// Reads the file that `RDMA_TUNING` names, where a wrong one is an error, or else that of the user or of the machine;
    /// `get` looks variables up.
    pub fn apply_tuning(
        &mut self,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<TuningOutcome, Status> {
        let value = |name: &str| get(name).filter(|value| !value.is_empty());
        if let Some(path) = value("RDMA_TUNING") {
            let file = read(&path).and_then(|file| parse(&path, &file));
            self.tuning = file.map_err(|status| {
                let text = text!("RDMA_TUNING: {}", status.message);
                status.with_message(text)
            })?;
            return Ok(TuningOutcome::Read(path));
        }
        let home = || Some(PathBuf::from(value("HOME")?).join(".config"));
        let own = value("XDG_CONFIG_HOME").map(PathBuf::from).or_else(home);
        let own = own.filter(|path| path.is_absolute()).map(|path| (path.join(OWN), true));
        for (path, own) in own.into_iter().chain([(PathBuf::from(ALL), false)]) {
            let path = path.to_string_lossy();
            // Of who changed its user, as services do, HOME may still be another's, and shut.
            let absent = |code| code == Code::NotFound || own && code == Code::PermissionDenied;
            match read(&path).and_then(|file| parse(&path, &file)) {
                Ok(tuning) => {
                    self.tuning = tuning;
                    return Ok(TuningOutcome::Read(path.into_owned()));
                }
                Err(status) if absent(status.code) => {}
                Err(status) => return Ok(TuningOutcome::Wrong(status.into_message())),
            }
        }
        Ok(TuningOutcome::Nothing)
    }

    /// The sizes of a provider: as the application or the environment said, or the file, or else as measured on some
    /// machine.
    pub fn sizes_of(&self, provider: ProviderKind) -> Sizes {
        let mut sizes = Sizes::default();
        if provider == ProviderKind::Ibverbs {
            // Who names several devices wants them used.
            let devices = self.ib.devices().map_or(0, |devices| devices.len() as u32);
            sizes.max_rdma_per_request = sizes.max_rdma_per_request.max(devices);
        }
        for chosen in [&self.tuning[provider as usize], &*self.sizes] {
            for (which, value) in chosen.iter() {
                sizes.set(which, value);
            }
        }
        sizes
    }
}

fn read(path: &str) -> Result<Vec<u8>, Status> {
    let os = |e: std::io::Error| {
        // A folder on the way that is a file is one without such a file.
        let absent = [libc::ENOENT, libc::ENOTDIR].map(Some).contains(&e.raw_os_error());
        let status = Status::os(format_args!("cannot read the tuning file {path:?}"), &e);
        if absent { status.with_code(Code::NotFound) } else { status }
    };
    let (text, _) = files::read(path, MAX_FILE + 1).map_err(os)?;
    if text.len() as u64 > MAX_FILE {
        return Err(Status::invalid(text!(
            "the tuning file {path:?} is longer than {MAX_FILE} bytes, which are allowed"
        )));
    }
    Ok(text)
}

/// Reads what a file says; an error names file, line, setting, value and what is allowed.
fn parse(path: &str, file: &[u8]) -> Result<Tuning, Status> {
    let mut tuning = Tuning::default();
    for (number, line) in (1..).zip(file.split(|&byte| byte == b'\n')) {
        let line = line.split(|&byte| byte == b'#').next().unwrap_or_default().trim_ascii();
        if line.is_empty() {
            continue;
        }
        let set = std::str::from_utf8(line).map_err(|_| "is no text".to_owned());
        set.and_then(|line| set_one(&mut tuning, line)).map_err(|why| {
            let shown = String::from_utf8_lossy(&line[..line.len().min(SHOWN)]);
            Status::invalid(text!("{path}:{number}: \"{}\" {why}", shown.escape_debug()))
        })?;
    }
    Ok(tuning)
}

/// Takes one line in. The error goes on behind the line.
fn set_one(tuning: &mut Tuning, line: &str) -> Result<(), String> {
    let (name, value) =
        line.split_once('=').ok_or("is not of the form provider.setting = value")?;
    let (provider, setting) = name.trim().split_once('.').unwrap_or((name.trim(), ""));
    let kind = ProviderKind::from_name(provider)
        .ok_or("names no provider, allowed are loopback, shm, ibverbs, tcp")?;
    let Some(which) = SIZES.iter().position(|size| size.is_named(setting)) else {
        let allowed = SIZES.map(|size| size.name).join(", ");
        return Err(format!("names no setting, allowed are {allowed}"));
    };
    let (min, max) = SIZES[which].range;
    let number = value.trim().parse::<i64>().ok().filter(|n| (min..=max).contains(n));
    let number = number.ok_or_else(|| {
        format!("sets {setting} to a value that is not allowed: whole numbers {min} to {max} are")
    })?;
    match tuning[kind as usize].choose(which, number) {
        None => Ok(()),
        Some(before) => Err(format!("sets {provider}.{setting} again, which is {before} already")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(vars: &[(&str, &str)]) -> Result<(Config, TuningOutcome), Status> {
        let mut config = Config::default();
        let get = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1.to_owned());
        let told = config.apply_tuning(get)?;
        Ok((config, told))
    }

    fn folder(name: &str) -> String {
        let dir = std::env::temp_dir().join(format!("rdma-tuning-{name}-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("rdma-transport")).unwrap();
        dir.to_str().unwrap().to_owned()
    }

    #[test]
    fn each_provider_has_its_own() {
        let mut text =
            String::from("# by hand\r\n\r\n \t shm.eager_limit=1#KiB\nshm.max_send_size = 65536");
        for size in &SIZES {
            text += &format!("\nibverbs.{} = {} # {}", size.name, size.range.1, size.variable);
        }
        let mut config =
            Config { tuning: parse("file", text.as_bytes()).unwrap(), ..Config::default() };
        let built_in = Sizes::default();
        assert_eq!(config.sizes_of(ProviderKind::Tcp), built_in);
        let shm = config.sizes_of(ProviderKind::Shm);
        assert_eq!(shm, Sizes { eager_limit: 1, max_send_size: 65536, ..built_in });
        let ibverbs = config.sizes_of(ProviderKind::Ibverbs);
        assert!((0..SIZES.len()).all(|which| ibverbs.get(which) == SIZES[which].range.1));
        // What the environment says goes before.
        let notes = config.apply_env(|name| (name == "RDMA_MAX_SEND_SIZE").then(|| "4096".into()));
        assert_eq!(notes.unwrap().len(), 1);
        let shm = config.sizes_of(ProviderKind::Shm);
        assert_eq!(shm, Sizes { eager_limit: 1, max_send_size: 4096, ..built_in });
        assert_eq!(config.sizes_of(ProviderKind::Tcp).max_send_size, 4096);
    }

    #[test]
    fn the_pipelines_sizes_go_by_their_names_in_ob1_too() {
        let text = b"ibverbs.rdma_pipeline_frag_size = 8192\nibverbs.rdma_pipeline_send_length = 5";
        let config = Config { tuning: parse("file", text).unwrap(), ..Config::default() };
        let sizes = config.sizes_of(ProviderKind::Ibverbs);
        assert_eq!((sizes.rdma_pipeline_frag_size, sizes.rdma_pipeline_send_length), (8192, 5));
        let twice = b"shm.pipeline_frag_size = 8192\nshm.rdma_pipeline_frag_size = 4096";
        let message = parse("f", twice).unwrap_err().into_message();
        assert!(message.contains("again, which is 8192 already"), "{message}");
        for name in ["rdma_eager_limit", "rdma_rdma_pipeline_frag_size", "rdma_pipeline_"] {
            let message = parse("f", format!("shm.{name} = 4096").as_bytes()).unwrap_err();
            assert!(message.message.contains("names no setting"), "{name}: {message}");
        }
    }

    #[test]
    fn wrong_lines_are_named() {
        let cases = [
            ("shm.eager_limit", "provider.setting = value"),
            ("= 3", "no provider, allowed are loopback, shm, ibverbs, tcp"),
            ("eager_limit = 3", "no provider"),
            ("SHM.eager_limit = 3", "no provider"),
            ("shm = 3", "no setting, allowed are eager_limit, rndv_eager_limit, "),
            ("shm.eager = 3", "no setting"),
            ("tcp.eager_limit = -1", "whole numbers 0 to 1073741824"),
            ("tcp.eager_limit = 8k", "whole numbers 0 to"),
            ("tcp.eager_limit =", "whole numbers 0 to"),
            ("tcp.send_pipeline_depth = 99999999999999999999", "1 to 64"),
            ("shm.max_send_size = 512\nshm.max_send_size = 512", "again, which is 512 already"),
            ("tcp.eager_limit = \u{1}", "whole numbers"),
        ];
        for (text, want) in cases {
            let file = format!("# first\n{text}\n");
            let message = parse("/a/file", file.as_bytes()).unwrap_err().into_message();
            let lines = text.lines().count();
            assert!(message.starts_with(&format!("/a/file:{}: ", 1 + lines)), "{message}");
            assert!(message.contains(want), "{text}: {message}");
        }
        let message = parse("f", b"tcp.\xff = 3").unwrap_err().into_message();
        assert!(message.contains("is no text"), "{message}");
    }

    #[test]
    fn the_environment_names_it_or_the_user_has_one() {
        let dir = folder("own");
        let file = format!("{dir}/rdma-transport/tuning");
        std::fs::write(&file, "tcp.eager_limit = 77").unwrap();
        for vars in [[("RDMA_TUNING", file.as_str())], [("XDG_CONFIG_HOME", dir.as_str())]] {
            let (config, told) = apply(&vars).unwrap();
            assert_eq!(told, TuningOutcome::Read(file.clone()));
            assert_eq!(config.sizes_of(ProviderKind::Tcp).eager_limit, 77);
        }
        // An empty one, which is none of the others.
        let vars = [("RDMA_TUNING", "/dev/null"), ("XDG_CONFIG_HOME", dir.as_str())];
        let (config, told) = apply(&vars).unwrap();
        assert_eq!(
            (config.tuning, told),
            (Tuning::default(), TuningOutcome::Read("/dev/null".into()))
        );
        std::fs::write(&file, "tcp.eager_limit = x").unwrap();
        let (config, told) = apply(&[("XDG_CONFIG_HOME", dir.as_str())]).unwrap();
        assert!(
            matches!(told, TuningOutcome::Wrong(text) if text.contains("tuning:1: \"tcp.eager_limit = x\""))
        );
        assert_eq!(config.tuning, Tuning::default());
        let message = apply(&[("RDMA_TUNING", file.as_str())]).unwrap_err().into_message();
        assert!(message.starts_with("RDMA_TUNING: ") && message.contains(&file), "{message}");
        std::fs::write(&file, vec![b'#'; MAX_FILE as usize + 1]).unwrap();
        for path in [file.as_str(), "/nonexistent/tuning", dir.as_str()] {
            let message = apply(&[("RDMA_TUNING", path)]).unwrap_err().into_message();
            assert!(message.contains(path), "{message}");
        }
        std::fs::remove_dir_all(&dir).unwrap();
    }

    /// A service that runs as another user than whose HOME it was given.
    #[test]
    fn a_folder_of_another_user_has_no_file() {
        use std::os::unix::fs::PermissionsExt;
        let dir = folder("shut");
        let file = format!("{dir}/rdma-transport/tuning");
        std::fs::write(&file, "tcp.eager_limit = 77").unwrap();
        let mode = |bits| std::fs::Permissions::from_mode(bits);
        std::fs::set_permissions(&dir, mode(0)).unwrap();
        let found = std::thread::scope(|s| {
            let look = || {
                // Root may enter every folder. SAFETY: no pointers; it is of this thread, which ends.
                unsafe { libc::syscall(libc::SYS_setfsuid, 65534) };
                let named = apply(&[("RDMA_TUNING", file.as_str())]).map(|found| found.1);
                (apply(&[("XDG_CONFIG_HOME", dir.as_str())]).map(|found| found.1), named)
            };
            s.spawn(look).join().unwrap()
        });
        std::fs::set_permissions(&dir, mode(0o700)).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        // What there is for all users is not hidden by it.
        let (_, all) = apply(&[]).unwrap();
        assert_eq!(found.0.unwrap(), all);
        assert_eq!(found.1.unwrap_err().code, Code::PermissionDenied, "it was named");
    }

    /// Whatever bytes a file has, it is read or named wrong, and what is read is within its range.
    #[test]
    fn random_files_never_panic() {
        let words: [&[u8]; 12] = [
            b"shm",
            b".",
            b"tcp.eager_limit",
            b"=",
            b" 4096",
            b"\n",
            b"#",
            b"\xff",
            b"-",
            b"max_send_size",
            b"ibverbs.send_pipeline_depth = 7\n",
            b"18446744073709551616",
        ];
        let (mut seed, mut read) = (1u64, 0);
        let mut draw = |n: usize| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as usize % n
        };
        for _ in 0..20_000 {
            let mut file = Vec::new();
            for _ in 0..draw(12) {
                match draw(8) {
                    0 => file.push(draw(256) as u8),
                    _ => file.extend_from_slice(words[draw(words.len())]),
                }
            }
            match parse("f", &file) {
                Ok(tuning) => {
                    read += usize::from(tuning != Tuning::default());
                    for (which, value) in tuning.iter().flat_map(Chosen::iter) {
                        let (min, max) = SIZES[which].range;
                        assert!((min..=max).contains(&value));
                    }
                }
                Err(status) => assert!(status.message.starts_with("f:"), "{status}"),
            }
        }
        assert!(read > 100, "{read}");
    }
}
