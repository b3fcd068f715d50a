//! The environment's part of the settings: it overrides what was set in code.

use super::{Config, MAX_DEVICE_LEN, MAX_SECRET_LEN, MAX_TIMEOUT_MS, MTUS, SHM_COPIES};
use super::{check_listen, check_mtu, choice, limits, range, text};
use crate::api::Protocol;
use crate::engine::transfer::sizes::{SIZES, Sizes};
use crate::engine::transfer::table::TABLE;
use crate::fabric::ProviderKind;
use crate::log::Level;
use crate::os::files;
use crate::status::Status;

/// Looks variables up, parses them and remembers what they changed.
struct Env<G> {
    get: G,
    notes: Vec<String>,
}

impl<G: Fn(&str) -> Option<String>> Env<G> {
    /// The variable's value; an empty one counts as not set.
    fn value(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|value| !value.is_empty())
    }

    fn note(&mut self, name: &str, now: impl std::fmt::Display, before: impl std::fmt::Display) {
        self.notes.push(format!("{name}={now} from the environment replaces {before}"));
    }

    /// A whole number; `check` sees what was given, also beyond 64 bits.
    fn number<T: TryFrom<i64> + std::fmt::Display + Copy>(
        &mut self,
        name: &str,
        (min, max): (i64, i64),
        to: &mut T,
    ) -> Result<(), Status> {
        let Some(value) = self.value(name) else { return Ok(()) };
        let bad = || {
            Status::invalid(text!("{name} is {value:?}, allowed are whole numbers {min} to {max}"))
        };
        let number = value.trim().parse::<i128>().map_err(|_| bad())?;
        let new = T::try_from(range(name, number, min, max)?).map_err(|_| bad())?;
        self.note(name, new, *to);
        *to = new;
        Ok(())
    }

    fn word(
        &mut self,
        name: &str,
        allowed: &[&'static str],
    ) -> Result<Option<&'static str>, Status> {
        self.value(name).map(|value| choice(name, value.trim(), allowed)).transpose()
    }
}

impl Config {
    /// Applies the environment, given as a look-up function. Returns a line for the log for each
    /// setting it replaced. An error names the variable, its value and what is allowed; the
    /// settings are then not to be used.
    pub fn apply_env(
        &mut self,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<String>, Status> {
        let mut env = Env { get, notes: Vec::new() };
        self.apply_choices(&mut env)?;
        self.apply_texts(&mut env)?;
        self.apply_secret(&mut env)?;
        env.number("RDMA_TIMEOUT_MS", (1, MAX_TIMEOUT_MS as i64), &mut self.timeout_ms)?;
        env.number("RDMA_PEER_TIMEOUT_MS", (0, MAX_TIMEOUT_MS as i64), &mut self.peer_timeout_ms)?;
        env.number("RDMA_BUSY_POLL_US", (0, limits::BUSY_POLL_US), &mut self.busy_poll_us)?;
        let kept = (0, limits::REGISTRATION_CACHE);
        env.number("RDMA_REGISTRATION_CACHE", kept, &mut self.registration_cache_bytes)?;
        env.number("RDMA_QP_QUEUE_DEPTH", (1, limits::QUEUE_DEPTH), &mut self.queue_depth)?;
        self.apply_sizes(&mut env)?;
        self.apply_ib(&mut env)?;
        // The log itself takes its level from the variable; here a wrong one is told.
        env.word("RDMA_LOG", &Level::ALL.map(Level::name))?;
        Ok(env.notes)
    }

    /// By what sizes content is cut, by ob1's names.
    fn apply_sizes<G: Fn(&str) -> Option<String>>(
        &mut self,
        env: &mut Env<G>,
    ) -> Result<(), Status> {
        let mut eager = self.eager_max.unwrap_or(0);
        env.number("RDMA_EAGER_LIMIT", (0, limits::EAGER_MAX), &mut eager)?;
        self.eager_max = Some(eager).filter(|&n| n > 0);
        for (which, size) in SIZES.iter().enumerate().skip(1) {
            let mut value = self.sizes.get(which).unwrap_or_else(|| Sizes::default().get(which));
            if env.value(size.variable).is_some() {
                env.number(size.variable, size.range, &mut value)?;
                self.sizes.choose(which, value);
            }
        }
        Ok(())
    }

    fn apply_choices<G: Fn(&str) -> Option<String>>(
        &mut self,
        env: &mut Env<G>,
    ) -> Result<(), Status> {
        let providers = ["auto", "loopback", "shm", "ibverbs", "tcp"];
        if let Some(word) = env.word("RDMA_PROVIDER", &providers)? {
            env.note("RDMA_PROVIDER", word, self.provider.map_or("auto", ProviderKind::name));
            self.provider = ProviderKind::from_name(word);
            self.provider_from_env = true;
        }
        let words: Vec<_> = TABLE.iter().filter(|e| e.forced).map(|e| e.name).collect();
        if let Some(word) = env.word("RDMA_PROTOCOL", &words)? {
            let own = Protocol::of_number(self.protocol).map_or("?", |p| p.entry().name);
            env.note("RDMA_PROTOCOL", word, own);
            let chosen = TABLE.iter().find(|e| e.name == word);
            self.protocol = chosen.map_or(self.protocol, |e| e.protocol as u32);
        }
        if let Some(word) = env.word("RDMA_SHM_COPY", &SHM_COPIES)? {
            env.note("RDMA_SHM_COPY", word, self.shm_copy.as_deref().unwrap_or("auto"));
            self.shm_copy = Some(word.to_owned());
        }
        Ok(())
    }

    fn apply_texts<G: Fn(&str) -> Option<String>>(
        &mut self,
        env: &mut Env<G>,
    ) -> Result<(), Status> {
        if let Some(address) = env.value("RDMA_LISTEN") {
            check_listen("RDMA_LISTEN", &address)?;
            env.note("RDMA_LISTEN", &address, self.listen.as_deref().unwrap_or("the default"));
            self.listen = Some(address);
        }
        if let Some(device) = env.value("RDMA_DEVICE") {
            text("RDMA_DEVICE", &device, MAX_DEVICE_LEN)?;
            env.note("RDMA_DEVICE", &device, self.ib.device.as_deref().unwrap_or("any device"));
            self.ib.device = Some(device);
            self.ib.device_from_env = true;
        }
        if let Some(path) = env.value("RDMA_TRACE") {
            text("RDMA_TRACE", &path, libc::PATH_MAX as usize - 1)?;
            env.note("RDMA_TRACE", &path, self.trace.as_deref().unwrap_or("no trace"));
            self.trace = Some(path);
        }
        Ok(())
    }

    fn apply_secret<G: Fn(&str) -> Option<String>>(
        &mut self,
        env: &mut Env<G>,
    ) -> Result<(), Status> {
        let Some(path) = env.value("RDMA_AUTH_SECRET_FILE") else { return Ok(()) };
        let (secret, mode) = read_secret(&path)?;
        let before = if self.secret.is_some() { "the option's secret" } else { "no secret" };
        env.note("RDMA_AUTH_SECRET_FILE", &path, before);
        if mode & 0o077 != 0 {
            env.notes.push(format!(
                "RDMA_AUTH_SECRET_FILE: {path} has mode {:o}, others may read the secret",
                mode & 0o777
            ));
        }
        self.secret = Some(secret);
        Ok(())
    }

    fn apply_ib<G: Fn(&str) -> Option<String>>(&mut self, env: &mut Env<G>) -> Result<(), Status> {
        let ib = &mut self.ib;
        env.number("RDMA_DEVICE_PORT", (0, limits::PORT), &mut ib.port)?;
        env.number("RDMA_GID_INDEX", (-1, limits::GID_INDEX), &mut ib.gid_index)?;
        env.number("RDMA_QP_PKEY_INDEX", (0, limits::PKEY_INDEX), &mut ib.pkey_index)?;
        env.number("RDMA_QP_TIMEOUT", (0, limits::QP_TIMEOUT), &mut ib.timeout)?;
        env.number("RDMA_QP_RETRY_COUNT", (0, limits::RETRY_COUNT), &mut ib.retry_count)?;
        env.number("RDMA_QP_SL", (0, limits::SL), &mut ib.sl)?;
        env.number("RDMA_TRAFFIC_CLASS", (0, limits::TRAFFIC_CLASS), &mut ib.traffic_class)?;
        env.number("RDMA_MAX_REGION", (limits::MIN_REGION, i64::MAX), &mut ib.max_region)?;
        if let Some(value) = env.value("RDMA_QP_MTU") {
            let mtu = value.trim().parse::<i128>().ok().and_then(|n| check_mtu("", n).ok());
            let Some(mtu) = mtu else {
                let allowed = MTUS.map(|m| m.to_string()).join(", ");
                return Err(Status::invalid(text!(
                    "RDMA_QP_MTU is {value:?}, allowed are 0 (the active MTU), {allowed}"
                )));
            };
            env.note("RDMA_QP_MTU", mtu, ib.mtu);
            ib.mtu = mtu;
        }
        Ok(())
    }
}

/// Reads a secret; one line end at its end is not part of it. Also returns the file's mode.
fn read_secret(path: &str) -> Result<(Vec<u8>, u32), Status> {
    let os = |e| Status::os(format_args!("RDMA_AUTH_SECRET_FILE: cannot read {path:?}"), &e);
    // Two more than allowed, for the line end and to see that there is more.
    let (mut secret, mode) = files::read(path, MAX_SECRET_LEN as u64 + 3).map_err(os)?;
    if secret.last() == Some(&b'\n') {
        secret.pop();
        if secret.last() == Some(&b'\r') {
            secret.pop();
        }
    }
    if secret.is_empty() || secret.len() > MAX_SECRET_LEN {
        let size = if secret.is_empty() { "no secret" } else { "a longer secret" };
        return Err(Status::invalid(text!(
            "RDMA_AUTH_SECRET_FILE: {path:?} holds {size}, allowed are 1 to {MAX_SECRET_LEN} bytes"
        )));
    }
    Ok((secret, mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(pairs: &[(&str, &str)]) -> Result<(Config, Vec<String>), Status> {
        let mut config = Config::default();
        let notes = config.apply_env(|name| {
            pairs.iter().find(|p| p.0 == name).map(|&(_, value)| value.to_owned())
        })?;
        Ok((config, notes))
    }

    #[test]
    fn every_variable_replaces_its_setting_and_says_so() {
        let dir = std::env::temp_dir().join(format!("rdma-secret-{}", std::process::id()));
        std::fs::write(&dir, "s3cret\r\n").unwrap();
        let secret = dir.to_str().unwrap().to_owned();
        let pairs = [
            ("RDMA_DEVICE", "rxe0"),
            ("RDMA_DEVICE_PORT", "2"),
            ("RDMA_GID_INDEX", "3"),
            ("RDMA_QP_PKEY_INDEX", "4"),
            ("RDMA_QP_QUEUE_DEPTH", "5"),
            ("RDMA_QP_TIMEOUT", "31"),
            ("RDMA_QP_RETRY_COUNT", "6"),
            ("RDMA_QP_SL", "7"),
            ("RDMA_QP_MTU", "2048"),
            ("RDMA_TRAFFIC_CLASS", "255"),
            ("RDMA_MAX_REGION", "65536"),
            ("RDMA_PROVIDER", "tcp"),
            ("RDMA_PROTOCOL", "get"),
            ("RDMA_EAGER_LIMIT", "1000"),
            ("RDMA_RNDV_EAGER_LIMIT", "1001"),
            ("RDMA_MAX_SEND_SIZE", "1002"),
            ("RDMA_MIN_RDMA_PIPELINE_SIZE", "1003"),
            ("RDMA_PIPELINE_FRAG_SIZE", "5000"),
            ("RDMA_PIPELINE_SEND_LENGTH", "1005"),
            ("RDMA_SEND_PIPELINE_DEPTH", "6"),
            ("RDMA_MAX_RDMA_PER_REQUEST", "3"),
            ("RDMA_MIN_STRIPED_SIZE", "1007"),
            ("RDMA_LISTEN", "[::1]:7000"),
            ("RDMA_AUTH_SECRET_FILE", secret.as_str()),
            ("RDMA_BUSY_POLL_US", "0"),
            ("RDMA_TIMEOUT_MS", "500"),
            ("RDMA_PEER_TIMEOUT_MS", "0"),
            ("RDMA_LOG", "debug"),
            ("RDMA_TRACE", "t-%p.json"),
            ("RDMA_SHM_COPY", "ring"),
        ];
        let (mut config, notes) = apply(&pairs).unwrap();
        std::fs::remove_file(&dir).unwrap();
        config.finish().unwrap();
        let ib = &config.ib;
        assert_eq!(ib.device.as_deref(), Some("rxe0"));
        assert_eq!((ib.port, ib.gid_index, ib.pkey_index, ib.timeout), (2, 3, 4, 31));
        assert_eq!((ib.retry_count, ib.sl, ib.mtu, ib.traffic_class), (6, 7, 2048, 255));
        assert_eq!((config.queue_depth, ib.max_region), (5, 65536));
        assert_eq!(config.provider, Some(ProviderKind::Tcp));
        assert_eq!(config.protocol, Protocol::DirectGet as u32);
        let sizes = Sizes {
            eager_limit: 0,
            rndv_eager_limit: 1001,
            max_send_size: 1002,
            min_rdma_pipeline_size: 1003,
            rdma_pipeline_frag_size: 5000,
            rdma_pipeline_send_length: 1005,
            send_pipeline_depth: 6,
            max_rdma_per_request: 3,
            min_striped_size: 1007,
        };
        for kind in [ProviderKind::Shm, ProviderKind::Tcp] {
            assert_eq!((config.eager_max, config.sizes_of(kind)), (Some(1000), sizes));
        }
        assert_eq!(config.listen.as_deref(), Some("[::1]:7000"));
        assert_eq!(config.secret.as_deref(), Some(&b"s3cret"[..]));
        assert_eq!((config.busy_poll_us, config.timeout_ms), (0, 500));
        assert_eq!((config.peer_timeout_ms, config.patience_ms()), (0, u64::MAX), "never");
        assert_eq!(config.trace.as_deref(), Some("t-%p.json"));
        assert_eq!(config.shm_copy.as_deref(), Some("ring"));
        for (name, _) in pairs.iter().filter(|p| p.0 != "RDMA_LOG") {
            assert!(notes.iter().any(|n| n.starts_with(name)), "{name} is not in {notes:?}");
        }
        assert!(notes.contains(&"RDMA_TIMEOUT_MS=500 from the environment replaces 120000".into()));
        assert!(notes.iter().all(|n| !n.contains("s3cret")), "the secret stays out of the log");
    }

    #[test]
    fn wrong_values_are_named() {
        let cases = [
            ("RDMA_DEVICE_PORT", "256", "0 to 255"),
            ("RDMA_GID_INDEX", "-2", "-1 to 65535"),
            ("RDMA_QP_PKEY_INDEX", "x", "0 to 65535"),
            ("RDMA_QP_QUEUE_DEPTH", "0", "1 to 65535"),
            ("RDMA_QP_TIMEOUT", "32", "0 to 31"),
            ("RDMA_QP_RETRY_COUNT", "8", "0 to 7"),
            ("RDMA_QP_SL", "99999999999999999999", "0 to 7"),
            ("RDMA_QP_MTU", "1500", "256, 512, 1024, 2048, 4096"),
            ("RDMA_TRAFFIC_CLASS", "1.5", "0 to 255"),
            ("RDMA_MAX_REGION", "4095", "4096 to"),
            ("RDMA_PROVIDER", "rdma", "auto, loopback, shm, ibverbs, tcp"),
            ("RDMA_PROTOCOL", "local", "auto, eager, put, get, persistent, pipeline"),
            ("RDMA_EAGER_LIMIT", "-1", "0 to"),
            ("RDMA_RNDV_EAGER_LIMIT", "8193", "0 to 8192"),
            ("RDMA_MAX_SEND_SIZE", "255", "256 to"),
            ("RDMA_MIN_RDMA_PIPELINE_SIZE", "-1", "0 to"),
            ("RDMA_PIPELINE_FRAG_SIZE", "4095", "4096 to"),
            ("RDMA_PIPELINE_SEND_LENGTH", "x", "0 to"),
            ("RDMA_SEND_PIPELINE_DEPTH", "65", "1 to 64"),
            ("RDMA_MAX_RDMA_PER_REQUEST", "9", "1 to 8"),
            ("RDMA_LISTEN", "nowhere:", "host:port"),
            ("RDMA_BUSY_POLL_US", "-1", "0 to 60000000"),
            ("RDMA_TIMEOUT_MS", "0", "1 to"),
            ("RDMA_PEER_TIMEOUT_MS", "-1", "0 to"),
            ("RDMA_LOG", "loud", "error, warn, info, debug"),
            ("RDMA_SHM_COPY", "dma", "pool, cma, ring"),
            ("RDMA_AUTH_SECRET_FILE", "/nonexistent/secret", "cannot read"),
            ("RDMA_AUTH_SECRET_FILE", "/dev/null", "allowed are 1 to 4096 bytes"),
            ("RDMA_AUTH_SECRET_FILE", "/dev/zero", "allowed are 1 to 4096 bytes"),
        ];
        for (name, value, allowed) in cases {
            let message = apply(&[(name, value)]).unwrap_err().into_message();
            for part in [name, value, allowed] {
                assert!(message.contains(part), "{name}={value}: {message}");
            }
        }
    }

    #[test]
    fn nothing_set_changes_nothing() {
        let (config, notes) = apply(&[("RDMA_PROVIDER", ""), ("RDMA_QP_SL", "")]).unwrap();
        assert!(notes.is_empty());
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::default()));
    }
}
