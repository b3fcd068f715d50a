//! Socket addresses: text, wire form, and what a wildcard stands for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use crate::room;
use crate::shown;
use crate::status::{Code, Status};
use crate::wire::{Reader, Truncated, Writer};

use super::{MAX_ADDRESSES, sys};

/// Turns `host:port`, `[v6]:port` or a bare host (port 0) into socket addresses, loopback IPv4
/// before IPv6 for "localhost".
///
/// Numeric addresses and "localhost" cost nothing. Any other name asks the system's resolver, which
/// *blocks*, for seconds where DNS is broken: prefer numeric addresses.
pub fn resolve(text: &str) -> Result<Vec<SocketAddr>, Status> {
    if let Some(addrs) = resolve_at_once(text)? {
        return Ok(addrs);
    }
    let (host, port) = split(text)?;
    let found = (host, port).to_socket_addrs().map_err(|e| {
        Status::new(Code::Unavailable, text!("address '{text}': cannot resolve '{host}': {e}"))
    })?;
    let mut addrs: Vec<SocketAddr> = Vec::new();
    for addr in found.take(MAX_ADDRESSES) {
        if !addrs.contains(&addr) {
            room::grow(&mut addrs, 1, "addresses")?;
            addrs.push(addr);
        }
    }
    if addrs.is_empty() {
        return Err(Status::new(
            Code::Unavailable,
            text!("address '{text}': '{host}' has no address"),
        ));
    }
    Ok(addrs)
}

/// The same of an address that is to be connected to: it needs a port.
pub(crate) fn resolve_peer(text: &str) -> Result<Vec<SocketAddr>, Status> {
    split_peer(text)?;
    resolve(text)
}

/// Host and port of an address that is to be connected to.
pub(crate) fn split_peer(text: &str) -> Result<(&str, u16), Status> {
    let bad = |why: &str| {
        Status::invalid(text!(
            "address '{}'{why}; allowed is 'host:port' or '[v6]:port', port 1 to 65535",
            shown::key(text.as_bytes())
        ))
    };
    match parts(text) {
        Ok((_, 0)) => Err(bad(" has no port to connect to")),
        Ok(found) => Ok(found),
        Err(why) => Err(bad(&text!(": {why}"))),
    }
}

/// The same, of what costs nothing; `None`: a name for the resolver.
pub(crate) fn resolve_at_once(text: &str) -> Result<Option<Vec<SocketAddr>>, Status> {
    let (host, port) = split(text)?;
    if let Some((ip, interface)) = ipv6(host).filter(|(ip, _)| ip.is_unicast_link_local()) {
        let scope = scope(text, interface)?;
        let at = SocketAddr::from(SocketAddrV6::new(ip, port, 0, scope));
        return room::collect([at].into_iter(), "addresses").map(Some);
    }
    if let Ok(ip) = host.parse::<IpAddr>() {
        return listed(&[ip], port);
    }
    if host.contains('%') {
        let text = shown::key(text.as_bytes());
        return Err(Status::invalid(text!(
            "address '{text}': an interface (%) belongs behind a link-local IPv6 address, of fe80::/10, alone"
        )));
    }
    if host.eq_ignore_ascii_case("localhost") {
        let ips = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        return listed(&ips, port);
    }
    Ok(None)
}

/// An IPv6 address and the interface behind it (RFC 4007).
fn ipv6(host: &str) -> Option<(Ipv6Addr, Option<&str>)> {
    let (ip, interface) = match host.split_once('%') {
        Some((ip, interface)) => (ip, Some(interface)),
        None => (host, None),
    };
    Some((ip.parse().ok()?, interface))
}

/// The number of the interface by which a link-local address is meant: each has such addresses.
fn scope(text: &str, interface: Option<&str>) -> Result<u32, Status> {
    let text = shown::key(text.as_bytes());
    let Some(interface) = interface.filter(|interface| !interface.is_empty()) else {
        return Err(Status::invalid(text!(
            "address '{text}' is link-local and names no interface; allowed is '[fe80::1%eth0]:port', or its number"
        )));
    };
    let found = match interface.parse() {
        Ok(number) => sys::has_interface(number).then_some(number),
        Err(_) => sys::interface(interface),
    };
    let interface = shown::key(interface.as_bytes());
    let none = || format!("address '{text}': this host has no interface '{interface}'");
    found.ok_or_else(|| Status::new(Code::Unavailable, none()))
}

/// Link-local addresses that a peer told of itself mean the link by which it was met, and nothing where that is another one.
pub(super) fn on_link(addrs: &mut Vec<SocketAddr>, far: &SocketAddr) {
    let scope = match far {
        SocketAddr::V6(far) if far.ip().is_unicast_link_local() => far.scope_id(),
        _ => 0,
    };
    addrs.retain_mut(|addr| match addr {
        SocketAddr::V6(addr) if addr.ip().is_unicast_link_local() => {
            addr.set_scope_id(scope);
            scope != 0
        }
        _ => true,
    });
}

fn listed(ips: &[IpAddr], port: u16) -> Result<Option<Vec<SocketAddr>>, Status> {
    room::collect(ips.iter().map(|ip| SocketAddr::new(*ip, port)), "addresses").map(Some)
}

/// Host and port of an address to listen on, 0 where there is none.
pub(crate) fn split(text: &str) -> Result<(&str, u16), Status> {
    parts(text).map_err(|why| {
        Status::invalid(text!(
            "address '{}': {why}; allowed are 'host:port', '[v6]:port' and 'host', port 0 to 65535",
            shown::key(text.as_bytes())
        ))
    })
}

/// Host and port, 0 where there is none; or what is wrong.
fn parts(text: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, tail) = rest.split_once(']').ok_or("']' is missing")?;
        if ipv6(host).is_none() {
            return Err("no IPv6 address between the brackets");
        }
        match tail {
            "" => (host, None),
            _ => (host, Some(tail.strip_prefix(':').ok_or("':' expected after ']'")?)),
        }
    } else if ipv6(text).is_some() {
        (text, None)
    } else {
        match text.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("more than one ':'");
            }
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    if host.is_empty() || host.len() > 253 || host.chars().any(|c| c.is_control() || c == ' ') {
        return Err("no usable host");
    }
    match port {
        None => Ok((host, 0)),
        Some(p) if !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()) => {
            p.parse().map(|p| (host, p)).map_err(|_| "port out of range")
        }
        Some(_) => Err("port is not a number"),
    }
}

/// Text that [`resolve`] reads back.
pub fn format_address(addr: &SocketAddr) -> String {
    addr.to_string()
}

/// Whether only this host reaches it.
pub(crate) fn is_loopback(addr: &SocketAddr) -> bool {
    addr.ip().to_canonical().is_loopback()
}

/// Where a connection comes from, as far as one attacker can be told from another: its address, of IPv6
/// the network of 64 bits, in which a host may take any.
pub(super) fn source(addr: &SocketAddr) -> IpAddr {
    match addr.ip().to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip) & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

pub(super) fn put(w: &mut Writer<'_>, addr: &SocketAddr) {
    match addr.ip() {
        IpAddr::V4(ip) => w.u8(4).bytes(&ip.octets()),
        IpAddr::V6(ip) => w.u8(6).bytes(&ip.octets()),
    };
    w.u16(addr.port());
}

/// `None`: a family that this version does not know.
pub(super) fn get(r: &mut Reader<'_>) -> Result<Option<SocketAddr>, Truncated> {
    let ip = match r.u8()? {
        4 => IpAddr::from(r.array::<4>()?),
        6 => IpAddr::from(r.array::<16>()?),
        _ => return Ok(None),
    };
    Ok(Some(SocketAddr::new(ip, r.u16()?)))
}

/// A count and the addresses, cut at [`MAX_ADDRESSES`].
pub(super) fn put_all(w: &mut Writer<'_>, addrs: &[SocketAddr]) {
    let addrs = &addrs[..addrs.len().min(MAX_ADDRESSES)];
    w.u8(addrs.len() as u8);
    for addr in addrs {
        put(w, addr);
    }
}

/// Reads what [`put_all`] wrote; addresses nobody could connect to are an error.
pub(super) fn get_all(r: &mut Reader<'_>) -> Result<Vec<SocketAddr>, Status> {
    let n = usize::from(r.u8()?);
    if n > MAX_ADDRESSES {
        return Err(Status::invalid(text!("{n} addresses; allowed are {MAX_ADDRESSES}")));
    }
    let mut addrs = Vec::with_capacity(n);
    for _ in 0..n {
        let addr = get(r)?.ok_or_else(|| Status::invalid("address of an unknown family"))?;
        if addr.port() == 0 || addr.ip().is_unspecified() || addr.ip().is_multicast() {
            return Err(Status::invalid(text!("address {addr} cannot be connected to")));
        }
        addrs.push(addr);
    }
    Ok(addrs)
}

/// The addresses at which peers reach a listener bound to `bound`: a wildcard becomes those of the
/// interfaces, loopback last.
pub(super) fn reachable(bound: SocketAddr, dual_stack: bool) -> Vec<SocketAddr> {
    if !bound.ip().is_unspecified() {
        return vec![bound];
    }
    let v4 = bound.is_ipv4() || dual_stack;
    let mut ips: Vec<IpAddr> = sys::interface_addresses();
    ips.retain(|ip| match ip {
        IpAddr::V4(_) => v4,
        // Link-local addresses mean nothing without an interface, which only this host knows.
        IpAddr::V6(ip) => bound.is_ipv6() && !ip.is_unicast_link_local(),
    });
    if !ips.iter().any(|ip| ip.is_loopback()) {
        let loopback = if v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        ips.push(loopback);
    }
    ips.sort_by_key(|ip| (ip.is_loopback(), ip.is_ipv6()));
    ips.dedup();
    ips.truncate(MAX_ADDRESSES);
    ips.into_iter().map(|ip| SocketAddr::new(ip, bound.port())).collect()
}

/// An IPv4 address that came through an IPv6 socket, as IPv4.
pub(super) fn canonical(addr: SocketAddr) -> SocketAddr {
    match addr {
        SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some() => {
            SocketAddr::new(addr.ip().to_canonical(), addr.port())
        }
        SocketAddr::V6(v6) => SocketAddrV6::new(*v6.ip(), v6.port(), 0, v6.scope_id()).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms() {
        let one = |t: &str| resolve(t).map(|a| a[0].to_string());
        assert_eq!(one("127.0.0.1:80").unwrap(), "127.0.0.1:80");
        assert_eq!(one("127.0.0.1").unwrap(), "127.0.0.1:0");
        assert_eq!(one("[::1]:65535").unwrap(), "[::1]:65535");
        assert_eq!(one("[::1]").unwrap(), "[::1]:0");
        assert_eq!(one("::1").unwrap(), "[::1]:0");
        assert_eq!(one("localhost:5").unwrap(), "127.0.0.1:5");
        for bad in [
            "", ":5", "h:", "h:x", "h:65536", "h:-1", "h:+1", "[::1:5", "[::1]5", "[h]:5", "a:b:5",
            "a b:5", "h:5\n",
        ] {
            let status = resolve(bad).unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{bad:?}");
            let bad = shown::key(bad.as_bytes()).to_string();
            assert!(status.message.contains(&bad) && !status.message.contains('\n'), "{status}");
        }
    }

    #[test]
    fn link_local_addresses_name_their_interface() {
        let one = |t: &str| resolve(t).map(|a| a[0].to_string());
        // The loopback interface is there in each network namespace, and mostly the first.
        let lo = sys::interface("lo").unwrap();
        for text in [format!("[fe80::1%{lo}]:5"), "[fe80::1%lo]:5".into()] {
            assert_eq!(one(&text).unwrap(), format!("[fe80::1%{lo}]:5"));
        }
        assert_eq!(one("fe80::1%lo").unwrap(), format!("[fe80::1%{lo}]:0"));
        for (bad, code, part) in [
            ("[fe80::1%nosuch0]:5", Code::Unavailable, "no interface 'nosuch0'"),
            ("[fe80::1%4000000000]:5", Code::Unavailable, "no interface '4000000000'"),
            ("[fe80::1%0]:5", Code::Unavailable, "no interface '0'"),
            ("[fe80::1]:5", Code::InvalidArgument, "names no interface"),
            ("[fe80::1%]:5", Code::InvalidArgument, "names no interface"),
            ("[2001:db8::1%lo]:5", Code::InvalidArgument, "link-local"),
            ("[::1%lo]:5", Code::InvalidArgument, "link-local"),
            ("[fe80::1%a b]:5", Code::InvalidArgument, "host"),
        ] {
            let status = one(bad).unwrap_err();
            assert_eq!(status.code, code, "{status}");
            assert!(status.message.contains(part) && status.message.contains(bad), "{status}");
        }
    }

    #[test]
    fn link_local_addresses_that_a_peer_tells_are_on_the_link_by_which_it_came() {
        let told: Vec<SocketAddr> =
            ["[fe80::1]:5", "10.0.0.1:5"].map(|a| a.parse().unwrap()).to_vec();
        let after = |far: &str| {
            let mut addrs = told.clone();
            on_link(&mut addrs, &far.parse().unwrap());
            addrs.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(after("[fe80::2%7]:9"), ["[fe80::1%7]:5", "10.0.0.1:5"]);
        assert_eq!(after("10.0.0.2:9"), ["10.0.0.1:5"]);
    }

    #[test]
    fn an_address_of_a_peer_has_a_port() {
        for bad in ["127.0.0.1", "127.0.0.1:0", "[::1]", "[::1]:0", "::1:5", "localhost", "host:0"]
        {
            let status = resolve_peer(bad).unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{bad:?}");
            assert!(status.message.contains(bad) && status.message.contains(":port'"), "{status}");
        }
        // What is malformed is told with what is allowed here: a port.
        for bad in ["host:x", "a:b:c", "[::1", "host:65536", ""] {
            let text = resolve_peer(bad).unwrap_err().into_message();
            assert!(
                text.contains("allowed is 'host:port' or '[v6]:port', port 1 to 65535"),
                "{text}"
            );
            let text = resolve(bad).unwrap_err().into_message();
            assert!(text.contains("and 'host', port 0 to 65535"), "{text}");
        }
        assert_eq!(resolve_peer("[::1]:5").unwrap()[0].to_string(), "[::1]:5");
    }

    #[test]
    fn wire_form_round_trips_and_refuses_nonsense() {
        let addrs: Vec<SocketAddr> =
            ["1.2.3.4:5", "[2001:db8::1]:6"].map(|a| a.parse().unwrap()).to_vec();
        let mut buf = Vec::new();
        put_all(&mut Writer::new(&mut buf), &addrs);
        assert_eq!(get_all(&mut Reader::new(&buf)), Ok(addrs));
        for bad in ["0.0.0.0:5", "1.2.3.4:0", "224.0.0.1:1"] {
            let mut buf = Vec::new();
            put_all(&mut Writer::new(&mut buf), &[bad.parse().unwrap()]);
            assert!(get_all(&mut Reader::new(&buf)).is_err(), "{bad}");
        }
        assert!(get_all(&mut Reader::new(&[1, 9])).is_err());
        assert!(get_all(&mut Reader::new(&[255])).is_err());
    }

    #[test]
    fn wildcards_expand_with_loopback_last() {
        let addrs = reachable("0.0.0.0:7".parse().unwrap(), false);
        assert!(addrs.iter().all(|a| a.is_ipv4() && a.port() == 7 && !a.ip().is_unspecified()));
        assert!(addrs.last().unwrap().ip().is_loopback());
        let first = addrs.iter().position(|a| a.ip().is_loopback()).unwrap();
        assert!(addrs[first..].iter().all(|a| a.ip().is_loopback()));
        let addrs = reachable("[::]:7".parse().unwrap(), true);
        assert!(addrs.last().unwrap().ip().is_loopback());
        assert_eq!(reachable("1.2.3.4:5".parse().unwrap(), true), ["1.2.3.4:5".parse().unwrap()]);
    }
}
