//! Which ibverbs devices the settings name.

use super::{IbConfig, MAX_DEVICES, limits};
use crate::status::Status;

impl IbConfig {
    /// Who names the device.
    pub fn device_setting(&self) -> &'static str {
        if self.device_from_env { "RDMA_DEVICE" } else { "options.ib_device" }
    }

    /// The devices that are named, each with its port if that is said; none: one is to be chosen.
    pub fn devices(&self) -> Result<Vec<(String, Option<u8>)>, Status> {
        let Some(list) = self.device.as_deref() else { return Ok(Vec::new()) };
        let bad = |what: String| {
            let text = text!(
                "{}={list}: {what}; allowed are 1 to {MAX_DEVICES} names with a comma between, each \
                 once, and behind each a colon and a port from 1 to {} if need be",
                self.device_setting(),
                limits::PORT
            );
            Err(Status::invalid(text))
        };
        let mut devices = Vec::new();
        for one in list.split(',') {
            let (name, port) = match one.split_once(':') {
                None => (one, None),
                Some((name, port)) => match port.parse() {
                    Ok(port @ 1..) => (name, Some(port)),
                    _ => return bad(format!("port {port:?}")),
                },
            };
            let device = (name.to_owned(), port);
            if name.is_empty() {
                return bad("an empty name".to_owned());
            }
            if devices.contains(&device) {
                return bad(format!("{one} twice"));
            }
            devices.push(device);
        }
        match devices.len() {
            1..=MAX_DEVICES => Ok(devices),
            n => bad(format!("{n} names")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::fabric::ProviderKind;

    fn of(list: &str) -> IbConfig {
        IbConfig { device: Some(list.to_owned()), ..IbConfig::default() }
    }

    #[test]
    fn a_list_of_devices_and_ports_is_taken_apart() {
        let named = |list| of(list).devices().unwrap();
        let device = |name: &str, port| (name.to_owned(), port);
        assert_eq!(IbConfig::default().devices(), Ok(Vec::new()));
        assert_eq!(named("mlx5_0"), [device("mlx5_0", None)]);
        assert_eq!(named("a:1,a:2"), [device("a", Some(1)), device("a", Some(2))]);
        assert_eq!(named("a,b:255,c,d").len(), MAX_DEVICES);
    }

    #[test]
    fn what_is_wrong_in_a_list_is_named() {
        let cases = [
            ("a,", "an empty name"),
            (":1", "an empty name"),
            ("a,b,a", "a twice"),
            ("a:1,a:1", "a:1 twice"),
            ("a:0", "port \"0\""),
            ("a:256", "port \"256\""),
            ("a:", "port \"\""),
            ("a:1:2", "port \"1:2\""),
            ("a,b,c,d,e", "5 names"),
        ];
        for (list, what) in cases {
            let text = of(list).devices().unwrap_err().message.clone();
            assert!(
                text.starts_with(&format!("options.ib_device={list}: {what}; allowed are")),
                "{text}"
            );
            let set = IbConfig { device_from_env: true, ..of(list) };
            let set = set.devices().unwrap_err();
            assert!(set.message.starts_with(&format!("RDMA_DEVICE={list}: {what};")), "{set}");
            let mut config = Config { name: "n".into(), ib: of(list), ..Config::default() };
            assert_eq!(config.finish().unwrap_err().message, text.as_str());
        }
    }

    #[test]
    fn who_names_several_devices_has_a_connection_for_each() {
        let rails = |list: Option<&str>, kind| {
            let ib = IbConfig { device: list.map(str::to_owned), ..IbConfig::default() };
            Config { ib, ..Config::default() }.sizes_of(kind).max_rdma_per_request
        };
        assert_eq!(rails(None, ProviderKind::Ibverbs), 1);
        assert_eq!(rails(Some("a"), ProviderKind::Ibverbs), 1);
        assert_eq!(rails(Some("a,b,c"), ProviderKind::Ibverbs), 3);
        assert_eq!(rails(Some("a,b,c"), ProviderKind::Tcp), 1);
    }
}
