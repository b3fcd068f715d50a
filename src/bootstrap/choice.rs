//! Which provider carries a connection.

use crate::fabric::ProviderKind;
use crate::status::{Code, Status};

use super::Identity;

/// Providers that two sides have in common, best first, and what speaks against the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Usable ones; never empty.
    pub candidates: Vec<ProviderKind>,
    /// Why each of the others is not usable.
    pub against: Vec<(ProviderKind, String)>,
}

impl Choice {
    /// A sentence on why `kind` was taken and none that is better. `failures` are those found on
    /// the way.
    pub fn reason(&self, kind: ProviderKind, failures: &[(ProviderKind, String)]) -> String {
        let mut text = String::from(praise(kind));
        for (better, why) in self.against.iter().chain(failures).filter(|(k, _)| *k < kind) {
            text.push_str(&format!("; {}: {why}", better.name()));
        }
        text
    }
}

fn praise(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::Loopback => "same process",
        ProviderKind::Shm => "same host",
        ProviderKind::Ibverbs => "RDMA devices on both sides",
        ProviderKind::Tcp => "tcp reaches any host",
    }
}

/// Finds what both sides offer and what fits where they run. The same on either side.
pub fn choose(a: &Identity, b: &Identity) -> Result<Choice, Status> {
    let mut choice = Choice { candidates: Vec::new(), against: Vec::new() };
    for kind in ProviderKind::ALL {
        match objection(kind, a, b) {
            None => choice.candidates.push(kind),
            Some(why) => choice.against.push((kind, why)),
        }
    }
    if choice.candidates.is_empty() {
        return Err(Status::new(
            Code::FailedPrecondition,
            text!(
                "no provider in common between '{}' and '{}': {}",
                a.name,
                b.name,
                list(&choice.against)
            ),
        ));
    }
    Ok(choice)
}

/// "shm: why; tcp: why".
pub(super) fn list(against: &[(ProviderKind, String)]) -> String {
    let part = |(kind, why): &(ProviderKind, String)| {
        // A provider's own errors begin with its name.
        let name = kind.name();
        let why = why.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(why);
        format!("{name}: {why}")
    };
    against.iter().map(part).collect::<Vec<String>>().join("; ")
}

fn objection(kind: ProviderKind, a: &Identity, b: &Identity) -> Option<String> {
    let misfit = match kind {
        ProviderKind::Loopback if a.process_id != b.process_id => Some("different processes"),
        ProviderKind::Shm if a.host_id != b.host_id => Some("different hosts or namespaces"),
        _ => None,
    };
    let lacks = [a.lacks(kind), b.lacks(kind)];
    // Who cannot say on which host it is, is not on another one for that.
    let misfit = misfit.filter(|_| kind != ProviderKind::Shm || lacks == [None, None]);
    let mut whys: Vec<String> = misfit.map(String::from).into_iter().collect();
    whys.extend(lacks.into_iter().flatten());
    (!whys.is_empty()).then(|| whys.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_is_named_once() {
        let against = [
            (ProviderKind::Shm, "shm: peer 7 is on another host".to_owned()),
            (ProviderKind::Tcp, "shm: of another".to_owned()),
            (ProviderKind::Ibverbs, "no device".to_owned()),
        ];
        let said = "shm: peer 7 is on another host; tcp: shm: of another; ibverbs: no device";
        assert_eq!(list(&against), said);
    }
}
